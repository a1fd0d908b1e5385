// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/simplify.h"

#include <gtest/gtest.h>

#include <string>

#include "simplify/passes.h"
#include "simplify/rule_case.h"
#include "simplify/size_branches.h"

namespace torchalgo {
namespace {

// The rule that a pass is, if it takes the graph and the tensors of a run.
template <auto pass>
void rule(Example& example, SeenTensors& seen) {
  static_cast<void>(pass(example.graph, seen));
}
void in_place(Example& example, SeenTensors& seen) {
  static_cast<void>(functionalize(example.graph, seen));
}
void pads(Example& example, SeenTensors&) { fold_pads(example.graph); }
void own_pads(Example& example, SeenTensors&) { copy_pads(example.graph); }
void branches(Example& example, SeenTensors&) {
  resolve_size_branches(example.graph, example.arguments);
}
void slices(Example& example, SeenTensors&) {
  resolve_size_branches(example.graph, example.arguments);
  static_cast<void>(
      remove_whole_slices(example.graph, see_tensors(example.graph, example.arguments)));
}
void whole(Example& example, SeenTensors& seen) {
  seen = simplify(example.graph, example.arguments);
}

constexpr Rule kIdentities = rule<remove_identities>;
constexpr Rule kActivations = rule<name_written_activations>;
constexpr Rule kStacks = rule<take_stacks_apart>;
constexpr Rule kAttention = rule<fuse_attention>;
constexpr Rule kVectors = rule<keep_pooled_vectors>;
constexpr Rule kMeans = rule<flatten_means>;
constexpr Rule kNorms = rule<complete_norms>;
constexpr Rule kTokenNorms = rule<name_token_norms>;
constexpr Rule kWrittenNorms = rule<name_written_norms>;
constexpr Rule kChannelsFirst = rule<move_channels_first>;
constexpr Rule kAffine = rule<fold_affine>;
constexpr Rule kMerge = rule<merge_branches>;
constexpr Rule kChannelOps = rule<simplify_channel_ops>;

const RuleCase kCases[] = {
    // ---- ops that return their input ------------------------------------------------------------
    {"SumWithZero",
     kIdentities,
     R"(
        y = torch.relu(x)
        z = y + self.zero
        return torch.sigmoid(z))",
     "relu sigmoid",
     {"y", "z"}},
    {"CastToTheOwnType",
     kIdentities,
     R"(
        y = torch.relu(x)
        z = y.to(x.dtype)
        return torch.sigmoid(z))",
     "relu sigmoid",
     {"y", "z"}},
    {"SumThatTheCallerGets", kIdentities, R"(
        return x + self.zero)",
     nullptr},

    // ---- activations that the model writes down -------------------------------------------------
    {"Silu",
     kActivations,
     R"(
        y = x * torch.sigmoid(x)
        return y + 1.0)",
     "silu add",
     {"x", "y"}},
    {"Mish",
     kActivations,
     R"(
        y = torch.tanh(torch.softplus(x)) * x
        return y + 1.0)",
     "mish add",
     {"x", "y"}},
    {"Hardsigmoid",
     kActivations,
     R"(
        y = torch.clamp(x + 3, 0.0, 6.0) / 6
        return y + 1.0)",
     "hardsigmoid add",
     {"x", "y"}},
    {"Hardswish",
     kActivations,
     R"(
        y = x * torch.relu6(x + 3.0) / 6.0
        return y + 1.0)",
     "hardswish add",
     {"x", "y"}},
    {"HardswishOfHardsigmoid",
     kActivations,
     R"(
        y = x * torch.hardsigmoid(x)
        return y + 1.0)",
     "hardswish add",
     {"x", "y"}},
    {"HardsigmoidByAFactor", kActivations, R"(
        return torch.relu6(x + 3.0) * 0.16666666666666666)",
     "hardsigmoid"},
    {"Gelu",
     kActivations,
     R"(
        y = x * 0.5 * (torch.erf(x / 1.4142135623730951) + 1.0)
        return y + 1.0)",
     "gelu add",
     {"x", "y"}},
    {"GateOfAnother", kActivations, R"(
        return torch.relu(x) * torch.sigmoid(x))",
     nullptr},
    {"GateWithTwoReaders", kActivations, R"(
        s = torch.sigmoid(x)
        return x * s, s + 1.0)",
     nullptr},
    {"OtherBounds", kActivations, R"(
        return torch.clamp(x + 3, 0.0, 5.0) / 6, torch.clamp(x + 2, 0.0, 6.0) / 6)",
     nullptr},

    // ---- stacks of images -----------------------------------------------------------------------
    {"SumOfStack",
     kStacks,
     R"(
        a = torch.relu(x)
        s = torch.stack([x, a], 1)
        return s.sum([1]))",
     "relu add",
     {"x", "a", "s"}},
    {"SumOfSplitChannels",
     kStacks,
     R"(
        s = x.view([x.size(0), 2, 2, x.size(2), x.size(3)])
        return s.sum([1]))",
     "narrow narrow add",
     {"x", "s"}},
    {"ItemsOfStack",
     kStacks,
     R"(
        a = torch.relu(x)
        s = torch.stack([x, a], -1)
        b, c = s.unbind(-1)
        return torch.sigmoid(s.select(-1, 1)) + torch.tanh(b), torch.tanh(c))",
     "relu sigmoid tanh add tanh",
     {"x", "a", "s"}},
    {"StackThatGrows",
     kStacks,
     R"(
        s = torch.stack([torch.relu(x), torch.tanh(x)], 1)
        t = torch.cat([x.unsqueeze(1), s], 1)
        return t.sum([1]))",
     "relu tanh add add",
     {"x", "s", "t"}},
    {"SumOverTheImagesOfAStack", kStacks, R"(
        return torch.stack([x, torch.relu(x)], 1).sum([2]))",
     nullptr},
    {"SplitThatFitsTheseSizesOnly", kStacks, R"(
        return x.view([2, 2, 2, 6, 5]).sum([1]), x.view([-1, 2, 2, 5, 6]).sum([1]))",
     nullptr},
    {"SoftmaxOverTwoConvolutions",
     kStacks,
     R"(
        p = x.mean([2, 3], True)
        l = torch.stack([torch.conv2d(p, self.k1, self.u), torch.conv2d(p, self.k2, self.v)], 1)
        w = torch.softmax(l, 1)
        return (torch.stack([x, torch.relu(x)], 1) * w).sum([1]))",
     "mean conv2d sigmoid narrow narrow relu mul mul add",
     {"x", "l", "w"}},
    {"SplitAttention",
     kStacks,
     R"(
        l = torch.conv2d(x.mean([2, 3], True), self.k1).view([x.size(0), 2, 2, 1, 1])
        s = x.view([x.size(0), 2, 2, x.size(2), x.size(3)])
        return (s * torch.softmax(l, 1)).sum([1]))",
     "mean conv2d sigmoid narrow narrow narrow narrow mul mul add",
     {"x", "l", "s"}},
    {"LinearLayersOfStackedVectors",
     kStacks,
     R"(
        p = torch.relu(torch.linear(x.mean([2, 3]), self.m))
        l = torch.stack([torch.linear(p, self.m, self.u), torch.linear(p, self.m, self.v)], 1)
        w = torch.softmax(l, 1)
        s = torch.stack([x, torch.relu(x)], 1)
        return (s * w.unsqueeze(-1).unsqueeze(-1)).sum([1]))",
     "mean conv2d relu conv2d sigmoid relu narrow narrow mul mul add",
     {"x", "s"}},

    // ---- attention ------------------------------------------------------------------------------
    {"Attention",
     kAttention,
     R"(
        q = torch.relu(x)
        k = torch.sigmoid(x)
        v = torch.tanh(x)
        y = torch.matmul(torch.softmax(torch.matmul(q, k.transpose(1, 2)) * 0.5, -1), v)
        return y + 1.0)",
     "relu sigmoid tanh attention add",
     {"q", "k", "v", "y"},
     {2, 7, 4}},
    {"AttentionWithBias",
     kAttention,
     R"(
        b = torch.tanh(x).mean([2], True)
        s = torch.softmax(torch.matmul(x, x.transpose(1, 2)) / 2.0 + b, -1)
        y = torch.matmul(s, x)
        return y + 1.0)",
     "tanh mean attention add",
     {"x", "b", "y"},
     {2, 7, 4}},
    {"AttentionOfScaledQueriesAndKeys",
     kAttention,
     R"(
        q = torch.relu(x)
        k = torch.sigmoid(x)
        y = torch.matmul(torch.softmax(torch.matmul(q * 0.5, (k / 2.0).transpose(1, 2)), -1), x)
        return y + 1.0)",
     "relu sigmoid attention add",
     {"q", "k", "x", "y"},
     {2, 7, 4}},
    {"AttentionOfScaledQueriesThatAreTransposed",
     kAttention,
     R"(
        q = torch.relu(x).transpose(1, 2) * 0.5
        s = torch.softmax(torch.matmul(q.transpose(1, 2), x.transpose(1, 2)) * 2.0, -1)
        return torch.matmul(s, x) + 1.0)",
     "relu attention add",
     {"q", "x"},
     {2, 7, 4}},
    {"AttentionOfScaledQueriesThatAreReadTwice",
     kAttention,
     R"(
        q = x * 0.5
        return torch.matmul(torch.softmax(torch.matmul(q, x.transpose(1, 2)), -1), q))",
     "mul attention",
     {"q", "x"},
     {2, 7, 4}},
    {"AttentionOfTransposedValues",
     kAttention,
     R"(
        v = torch.tanh(x).transpose(1, 2)
        s = torch.softmax(torch.matmul(x, x.transpose(1, 2)), -1)
        y = torch.matmul(v, s.transpose(1, 2))
        return y + 1.0)",
     "tanh attention transpose add",
     {"x", "v", "y"},
     {2, 7, 4}},
    {"ScaledDotProductAttention",
     kAttention,
     R"(
        y = torch.scaled_dot_product_attention(x, x, x)
        return y.reshape([-1]))",
     "attention reshape",
     {"x", "y"},
     {2, 7, 4}},
    {"LinearAttention",
     kAttention,
     R"(
        v = torch.tanh(x)
        k = torch.relu(x).transpose(1, 2)
        q = torch.relu(v)
        p = torch.matmul(q, torch.matmul(k, torch.pad(v, [0, 1], "constant", 1.0)))
        y = p[..., :-1] / (p[..., -1:] + 1e-6)
        return y + 1.0)",
     "tanh linear_attention add",
     {"x", "v", "y"},
     {2, 7, 4}},
    {"SoftmaxOverQueries",
     kAttention,
     R"(
        return torch.matmul(torch.softmax(torch.matmul(x, x.transpose(1, 2)), 1), x))",
     nullptr,
     {},
     {2, 7, 4}},

    // ---- vectors of pooled images ---------------------------------------------------------------
    {"SqueezeAndExcitation", kVectors, R"(
        p = torch.adaptive_avg_pool2d(x, [1, 1])
        f = torch.sigmoid(torch.linear(p.view([x.size(0), 4]), self.m, self.v))
        return x * f.view([x.size(0), 4, 1, 1]).expand_as(x))",
     "adaptive_avg_pool2d conv2d sigmoid mul"},
    {"MeanAndUnsqueeze", kVectors, R"(
        f = torch.linear(x.mean([2, 3]), self.m)
        return x * f.unsqueeze(2).unsqueeze(3))",
     "mean conv2d mul"},
    {"MeanOfRowsAndColumns", kVectors, R"(
        f = torch.relu(x.mean(3).mean(2))
        g = torch.sigmoid(torch.linear(f, self.m)).reshape([x.size(0), 4, 1, 1])
        return x * g)",
     "mean relu conv2d sigmoid mul"},
    {"MeanOfImages", kMeans, R"(
        return torch.linear(x.mean([-1, 2]), self.m), x.mean(3).mean(2))",
     "mean flatten linear mean flatten"},
    {"MeanOfAllPixels",
     kMeans,
     R"(
        return x.flatten(2).mean(2))",
     "mean flatten",
     {"x"}},
    {"MeanOfAllPixelsOfAConvolution",
     kMeans,
     R"(
        y = torch.conv2d(x, self.k1)
        return y.view([y.size(0), 4, -1]).mean(-1))",
     "conv2d mean flatten",
     {"y"}},
    {"MeanOfAllPixelsOfAsManyChannelsAsTheRunHas", kMeans, R"(
        return x.view([x.size(0), 4, -1]).mean(-1))",
     nullptr},
    {"SumOfAMatrixAndItsLinearLayer",
     kMerge,
     R"(
        return (x - 1000.0) + torch.linear(x, self.m))",
     nullptr,
     {},
     {3, 4}},
    {"MeanOfTokens",
     kMeans,
     R"(
        t = x.flatten(2)
        return t.transpose(1, 2).mean(1))",
     "mean flatten",
     {"x", "t"}},
    {"MeanOfTokensThatAreReadTwice", kMeans, R"(
        t = x.flatten(2).transpose(1, 2)
        return t.mean(1), t.mean(2), x.flatten(2).mean(1), x.flatten(1, 2).mean(2))",
     nullptr},
    {"MeanOfSomethingElse", kMeans, R"(
        return x.mean([1, 2]), x.mean(2).mean(1), x.mean([2, 3], True), x.mean(3))",
     nullptr},
    {"SumOfVectors", kVectors, R"(
        a = torch.linear(torch.avg_pool2d(x, [x.size(2), x.size(3)]).flatten(1), self.m)
        b = torch.linear(torch.adaptive_avg_pool2d(x, [1, 1]).flatten(1), self.m)
        return x * torch.sigmoid(a + b).view([x.size(0), 4, 1, 1]))",
     "size size avg_pool2d conv2d adaptive_avg_pool2d conv2d add sigmoid mul"},
    {"ViewOfAPooledImage", kVectors, R"(
        p = torch.relu(torch.adaptive_avg_pool2d(x, [1, 1]))
        return x * p.view([x.size(0), 4, 1, 1]))",
     "adaptive_avg_pool2d relu mul"},
    {"VectorOfOtherSizes",
     kVectors,
     R"(
        f = torch.linear(x.mean([2, 3]), self.m)
        g = torch.linear(x.mean([2]).mean([1]).expand([2, 4]), self.m)
        return f.view([2, 2, 2, 1]), g.view([2, 4, 1, 1]))",
     nullptr,
     {},
     {2, 4, 4, 4}},
    {"VectorWithTwoReaders", kVectors, R"(
        f = torch.linear(x.mean([2, 3]), self.m)
        return x * f.unsqueeze(2).unsqueeze(3), f + 1.0)",
     nullptr},

    // ---- zeros around images --------------------------------------------------------------------
    {"EvenZeros",
     pads,
     R"(
        z = torch.pad(x, [1, 1, 2, 2])
        return torch.conv2d(z, self.k3))",
     "conv2d",
     {"x"}},
    {"UnevenZeros", pads, R"(
        return torch.conv2d(torch.pad(x, [1, 0, 1, 0]), self.k3))",
     nullptr},
    {"Ones", pads, R"(
        return torch.conv2d(torch.pad(x, [1, 1, 1, 1], "constant", 1.0), self.k3))",
     nullptr},
    {"ZerosWithAnotherReader", pads, R"(
        z = torch.pad(x, [1, 1, 1, 1])
        return torch.conv2d(z, self.k3), torch.relu(z))",
     nullptr},
    {"UnevenZerosOfTwoConvolutions",
     own_pads,
     R"(
        z = torch.pad(x, [1, 0, 1, 0])
        return torch.conv2d(z, self.k3), torch.conv2d(z, self.k1))",
     "pad conv2d pad conv2d",
     {"x"}},

    // ---- norms ----------------------------------------------------------------------------------
    {"InstanceNorm", kNorms, R"(
        y = torch.conv2d(x, self.k1)
        return torch.instance_norm(y, None, None, None, None, True, 0.1, 1e-5, False))",
     "conv2d group_norm"},
    {"InstanceNormOfRunningStatistics", kNorms, R"(
        return torch.instance_norm(x, None, None, self.u, self.v, False, 0.1, 1e-5, False))",
     "batch_norm"},
    {"GroupNormOfUnknownChannels", kNorms, R"(
        return torch.group_norm(x, 2))",
     nullptr},
    {"BatchNormOfTokens",
     kTokenNorms,
     R"(
        t = torch.relu(x)
        n = torch.batch_norm(t.flatten(0, 1), self.v, self.u, self.u, self.v, False, 0.1, 1e-5, False)
        y = n.reshape_as(t)
        return y + 1.0)",
     "relu mul add contiguous add",
     {"t", "y"},
     {2, 7, 4}},
    {"BatchNormOfOtherRows",
     kTokenNorms,
     R"(
        n = torch.batch_norm(x.flatten(0, 1), None, None, self.u, self.v, False, 0.1, 1e-5, False)
        return n.reshape_as(torch.relu(x)))",
     nullptr,
     {},
     {2, 7, 4}},
    {"LayerNormOfChannels",
     kWrittenNorms,
     R"(
        c = x - x.mean([1], True)
        y = c / torch.sqrt((c * c).mean([1], True) + 1e-5) * self.v.view([4, 1, 1])
        return y + 1.0)",
     "channel_norm add",
     {"x", "y"}},
    {"RmsNormOfTokens",
     kWrittenNorms,
     R"(
        y = x * torch.rsqrt(x.square().mean([-1], True) + 1e-5) * self.v
        return y + 1.0)",
     "channel_norm add",
     {"x", "y"},
     {2, 7, 4}},
    {"VarianceNorm",
     kWrittenNorms,
     R"(
        y = x / torch.sqrt(x.var([1], True, True) + 1e-5)
        return torch.conv2d(y, self.k1))",
     "channel_norm conv2d",
     {"x", "y"}},
    {"LayerNormByTheVariance",
     kWrittenNorms,
     R"(
        y = (x - x.mean([-1], True)) * torch.rsqrt(x.var([-1], False, True) + 1e-5)
        return y * self.v + self.u)",
     "channel_norm",
     {"x"},
     {2, 7, 4}},
    {"NormOverAnotherDimension", kWrittenNorms, R"(
        a = x * torch.rsqrt(x.square().mean([2], True) + 1e-5)
        b = x * torch.rsqrt(x.square().mean([1], True) + 2.0)
        return torch.conv2d(a, self.k1) + torch.conv2d(b, self.k1))",
     nullptr},
    {"NormOfUnknownChannels", kWrittenNorms, R"(
        return x * torch.rsqrt(x.square().mean([1], True) + 1e-5))",
     nullptr},

    // ---- channels last --------------------------------------------------------------------------
    {"LinearLayerBetweenPermutes",
     kChannelsFirst,
     R"(
        t = x.permute([0, 2, 3, 1])
        y = torch.linear(torch.relu(t), self.m, self.v)
        return y.permute([0, 3, 1, 2]))",
     "relu conv2d",
     {"y"}},
    {"LinearLayerOfAWrittenPermute", kChannelsFirst, R"(
        t = x.permute([0, 2, 3, 1])
        t.cos_()
        y = torch.linear(torch.relu(t), self.m, self.v)
        return y.permute([0, 3, 1, 2]))",
     "permute cos_ relu permute conv2d"},
    {"LinearLayerOfTokens",
     kChannelsFirst,
     R"(
        y = torch.linear(x, self.m)
        z = torch.linear(y, self.m) + x
        return z)",
     "unsqueeze permute conv2d conv2d add permute contiguous squeeze",
     {},
     {2, 7, 4}},
    {"LinearLayersOfFlattenedImage", kChannelsFirst, R"(
        r = torch.relu(x)
        t = r.flatten(2).transpose(1, 2)
        y = torch.linear(torch.sigmoid(t), self.m)
        return torch.linear(y, self.m) + t)",
     "relu permute contiguous flatten unsqueeze permute sigmoid conv2d conv2d add permute "
     "contiguous squeeze"},
    {"TokensOfAnImage", kChannelsFirst, R"(
        t = torch.linear(x.flatten(2).transpose(1, 2), self.m)
        i = t.transpose(1, 2).reshape([x.size(0), 4, x.size(2), x.size(3)])
        return torch.conv2d(i, self.k3))",
     "permute contiguous flatten unsqueeze permute conv2d permute contiguous squeeze transpose "
     "size size size reshape conv2d"},
    {"ImageOfTokens",
     kChannelsFirst,
     R"(
        y = torch.linear(x, self.m)
        i = x.transpose(1, 2).reshape([x.size(0), 4, 2, -1])
        return y, torch.conv2d(i, self.k1))",
     "unsqueeze permute conv2d permute contiguous squeeze size reshape permute conv2d",
     {},
     {2, 6, 4}},
    {"BlockOfTokens",
     kChannelsFirst,
     R"(
        n = torch.layer_norm(x, [4], self.v, self.u)
        y = torch.linear(torch.gelu(torch.linear(n, self.m)), self.m) * self.v
        return x + y, y.size(1), y.size(2))",
     "unsqueeze permute permute layer_norm permute conv2d gelu conv2d mul add permute contiguous "
     "squeeze size size",
     {},
     {2, 7, 4}},
    {"BlockOfPermutedImages", kChannelsFirst, R"(
        t = x.permute([0, 2, 3, 1])
        a, b = torch.linear(torch.layer_norm(t, [4], self.v, self.u), self.m).chunk(2, -1)
        y = torch.linear(torch.cat([torch.relu(a), b], 3), self.m)
        return (y * y.mean([1, 2], True) + self.v).permute([0, 3, 1, 2]))",
     "permute layer_norm permute conv2d chunk ListUnpack relu cat conv2d mean mul add"},
    {"PermutesWithoutLinearLayer", kChannelsFirst, R"(
        return torch.relu(x.permute([0, 2, 3, 1])))",
     nullptr},

    // ---- products and sums with constants -------------------------------------------------------
    {"BatchNormBehindLinearLayer",
     kAffine,
     R"(
        y = torch.linear(x, self.m)
        return torch.batch_norm(y, self.v, self.u, self.u, self.v, False, 0.1, 1e-5, False))",
     "linear",
     {},
     {3, 4}},
    {"BatchNormInFrontOfLinearLayer",
     kAffine,
     R"(
        y = torch.batch_norm(x, self.v, self.u, self.u, self.v, False, 0.1, 1e-5, False)
        return torch.linear(torch.relu(x), self.m, self.u), torch.linear(y, self.m, self.u))",
     "relu linear linear",
     {},
     {3, 4}},
    {"ScaleOfTokensInFrontOfLinearLayer",
     kAffine,
     R"(
        return torch.linear(x * self.v, self.m))",
     nullptr,
     {},
     {2, 7, 4}},
    {"ScaleAndShiftOfMatrix",
     kAffine,
     R"(
        return torch.relu((x * self.v + self.u) / 2.0))",
     nullptr,
     {},
     {3, 4}},
    {"BatchNormBehindConvolution", kAffine, R"(
        y = torch.conv2d(x, self.k3)
        return torch.batch_norm(y, self.v, self.u, self.u, self.v, False, 0.1, 1e-5, False))",
     "conv2d"},
    {"NormalizationInFrontOfConvolution", kAffine, R"(
        return torch.conv2d((x - 0.5) / 2.0, self.k3))",
     "conv2d"},
    {"ChainOfProductsAndSums", kAffine, R"(
        y = torch.relu(x) * self.v.view([4, 1, 1])
        return torch.relu(torch.rsub(y / 0.5, 3.0) + self.u.view([1, 4, 1, 1])))",
     "relu batch_norm relu"},
    {"ScaleOfATransposedConvolution", kAffine, R"(
        return torch.conv_transpose2d(x, self.k3, self.u) * self.v.view([4, 1, 1]))",
     "conv_transpose2d"},
    {"ScaleBesideAGroupedConvolution", kAffine, R"(
        y = torch.conv2d(x * self.u.view([4, 1, 1]), self.d3, None, 1, 1, 1, 4)
        return y * self.v.view([4, 1, 1]))",
     "conv2d"},
    {"ConvolutionWithTwoReaders", kAffine, R"(
        y = torch.conv2d(x, self.k3)
        return y * 2.0, torch.relu(y))",
     "conv2d batch_norm relu"},
    {"SumWithAnImage", kAffine, R"(
        return torch.conv2d(x, self.k1) + x, torch.conv2d(x * torch.relu(x), self.k1))",
     nullptr},
    {"ShiftInFrontOfPadding", kAffine, R"(
        return torch.conv2d(x - 0.5, self.k3, None, 1, 1))",
     "batch_norm conv2d"},

    // ---- sums of convolutions -------------------------------------------------------------------
    {"SumOfConvolutions",
     kMerge,
     R"(
        return torch.conv2d(x, self.k3, None, 1, 1) + torch.conv2d(x, self.k1, self.v))",
     "conv2d",
     {"x"}},
    {"SumOfLinearLayers",
     kMerge,
     R"(
        y = torch.linear(x, self.m, self.v)
        return torch.linear(x, self.m) - y)",
     "linear",
     {"x", "y"},
     {2, 7, 4}},
    {"LinearLayersOfTwoTensors",
     kMerge,
     R"(
        return torch.linear(x, self.m) + torch.linear(torch.relu(x), self.m))",
     nullptr,
     {},
     {3, 4}},
    {"DifferenceOfConvolutionAndIdentity",
     kMerge,
     R"(
        return torch.conv2d(x, self.d3, None, 1, 1, 1, 4) - x)",
     "conv2d",
     {"x"}},
    {"SumOfConvolutionAndBatchNorm",
     kMerge,
     R"(
        y = torch.conv2d(x, self.k3, self.u, 1, 1)
        return y - torch.batch_norm(x, self.v, self.u, self.u, self.v, False, 0.1, 1e-5, False))",
     "conv2d",
     {"x"}},
    {"ConvolutionsWithOtherStrides", kMerge, R"(
        return torch.conv2d(x, self.k3, None, 2, 1) + torch.conv2d(x[:, :, ::2, ::2], self.k1))",
     nullptr},

    // ---- channels -------------------------------------------------------------------------------
    {"ChannelShuffle",
     kChannelOps,
     R"(
        s = x.view([x.size(0), 2, 2, x.size(2), x.size(3)]).transpose(1, 2).contiguous()
        return s.view([x.size(0), 4, x.size(2), x.size(3)]))",
     "channel_shuffle",
     {"x", "s"}},
    {"ShuffleOfConstantSizes", kChannelOps, R"(
        s = x.view([-1, 2, 2, 6, 5]).permute([0, 2, 1, 3, 4]).reshape([-1, 4, 6, 5])
        return s)",
     "size eq take_branch size eq take_branch channel_shuffle"},
    {"ShuffleOfRows", kChannelOps, R"(
        s = x.view([x.size(0), 4, 2, 3, x.size(3)]).transpose(1, 2).contiguous()
        return s.view([x.size(0), 4, 6, x.size(3)]))",
     nullptr},
    {"ChunksOfChannels",
     kChannelOps,
     R"(
        y = torch.relu(x)
        a, b = y.chunk(2, 1)
        return torch.relu(b), torch.cat([a, b, x], 1))",
     "relu narrow relu cat",
     {"y", "a", "b"}},
    {"PartsOfChannels", kChannelOps, R"(
        a, b = x.split([1, 3], 1)
        c, d = x.split(3, 1)
        return torch.relu(a), torch.relu(b), torch.relu(c), torch.relu(d))",
     "narrow narrow narrow narrow relu relu relu relu"},
    {"ChunksOfRows", kChannelOps, R"(
        a, b = x.chunk(2, 2)
        return torch.cat([b, a], 2))",
     nullptr},

    // ---- branches -------------------------------------------------------------------------------
    {"BranchOnSizes", branches, R"(
        if x.size(2) > 3:
            y = torch.relu(x)
        else:
            y = torch.tanh(x)
        return y)",
     "size gt take_branch relu"},
    {"BranchOnElements", branches, R"(
        if bool(x.sum() > 3.0):
            y = torch.relu(x)
        else:
            y = torch.tanh(x)
        return y)",
     nullptr},
    {"SliceThatTakesEverything", slices, R"(
        h = x.size(2)
        if h > 3:
            r = torch.relu(x)
        else:
            r = torch.tanh(x)
        y = torch.slice(r, 2, 0, h)
        return torch.sigmoid(y))",
     "size gt take_branch relu size ge take_branch sigmoid"},
    {"SliceThatIsWritten", slices, R"(
        h = x.size(2)
        if h > 3:
            r = torch.relu(x)
        else:
            r = torch.tanh(x)
        y = torch.slice(r, 2, 0, h)
        y.cos_()
        return torch.sigmoid(y))",
     "size gt take_branch relu slice cos_ sigmoid"},
    {"RanksAndChannels", whole, R"(
        assert x.dim() == 4
        y = torch.conv2d(x, self.k3)
        if y.size(1) == 4 and len(y.shape[-2:]) == 2 and y.size(1) * x.size(2) != 1:
            y = torch.relu(y)
        return y)",
     "conv2d relu"},

    // ---- ops in place ---------------------------------------------------------------------------
    {"ChangeInPlace", in_place, R"(
        y = torch.conv2d(x, self.k3)
        y.relu_()
        return y)",
     "conv2d relu"},
    {"ChangeOfTheInput", in_place, R"(
        x.relu_()
        return torch.conv2d(x, self.k3))",
     nullptr},
    {"ChangeBetweenReads", in_place, R"(
        y = torch.conv2d(x, self.k3)
        z = torch.sigmoid(y)
        y.mul_(2.0)
        return z + y)",
     "conv2d sigmoid mul add"},
    {"ChangeSeenThroughAView", in_place, R"(
        y = torch.conv2d(x, self.k3)
        w = y[:, 1:]
        y.add_(1.0)
        return torch.relu(w))",
     "conv2d add slice slice relu"},
    {"ChangeOfAView", in_place, R"(
        y = torch.conv2d(x, self.k3)
        w = y[:, 1:]
        w.add_(1.0)
        return torch.relu(w))",
     "conv2d slice slice add relu"},
    {"ChangeOfAPart", in_place, R"(
        y = torch.conv2d(x, self.k3)
        y[:, 1:].mul_(2.0)
        return torch.relu(y))",
     nullptr},
    {"ChangeOfWhatMayBeACopy", in_place, R"(
        y = torch.conv2d(x, self.k3)
        z = y.reshape([-1])
        y.mul_(2.0)
        return z + 1.0)",
     nullptr},

    // ---- what simplify() does itself ------------------------------------------------------------
    {"Dropout", whole, R"(
        return torch.feature_dropout(torch.dropout(torch.relu(x), 0.5, False), 0.5, False))",
     "relu"},
    {"Loop", whole, R"(
        for i in range(x.dim() - 1):
            x = torch.relu(x)
        return x)",
     "relu relu relu"},
    {"GrowingList", whole, R"(
        l = [x]
        a = torch.cat(l, 1)
        l.append(torch.relu(a))
        return torch.cat(l, 1))",
     "cat relu cat"},
    {"MutatedList", whole, R"(
        l = [x]
        l.append(torch.relu(x))
        return l[0] + l[1])",
     "relu add"},
};

class Rules : public testing::TestWithParam<RuleCase> {};

TEST_P(Rules, RewriteThisAndComputeTheSame) { check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Simplify, Rules, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace torchalgo
