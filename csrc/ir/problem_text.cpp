// SPDX-License-Identifier: BSD-3-Clause
// Prints and parses the spelling of problems. Both are in one file, so that they stay inverse to
// each other.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "ir/arithmetic.h"
#include "ir/problem.h"

namespace torchalgo {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 5> kDTypes = {{{DType::kF64, "f64"},
                                                                        {DType::kF32, "f32"},
                                                                        {DType::kTf32, "tf32"},
                                                                        {DType::kF16, "f16"},
                                                                        {DType::kBf16, "bf16"}}};
constexpr std::array<std::pair<Direction, std::string_view>, 3> kDirections = {
    {{Direction::kForward, "fwd"},
     {Direction::kBackwardData, "bwd_data"},
     {Direction::kBackwardFilter, "bwd_filter"}}};
constexpr std::array<std::pair<LayerNormKind, std::string_view>, 3> kLayerNormKinds = {
    {{LayerNormKind::kLayer, "layer"},
     {LayerNormKind::kRms, "rms"},
     {LayerNormKind::kVariance, "variance"}}};

constexpr std::array<std::pair<BatchNormStep, std::string_view>, 4> kBatchNormSteps = {
    {{BatchNormStep::kMoments, "moments"},
     {BatchNormStep::kNormalize, "normalize"},
     {BatchNormStep::kGradientSums, "bwd_normalize_sums"},
     {BatchNormStep::kGradient, "bwd_normalize"}}};

template <typename Key, std::size_t N>
std::string_view name_of(const std::array<std::pair<Key, std::string_view>, N>& names, Key key) {
  for (const auto& [value, name] : names) {
    if (value == key) return name;
  }
  return "?";
}

std::string print_epilogue(const Epilogue& epilogue) {
  std::string text;
  for (const PostOp& op : epilogue) text += fmt::format("+{}", to_string(op));
  return text;
}

// Prints the sizes [n, c, h, w]. All problems with these sizes share this spelling.
template <typename P>
std::string print_nchw(const P& p) {
  return fmt::format("n{}c{}h{}w{}", p.n, p.c, p.h, p.w);
}

// Prints the zeros before the image, and those after it if they are others.
std::string print_padding(const ConvProblem& p) {
  if (is_padded_evenly(p)) return fmt::format("_pad{}x{}", p.pad_h, p.pad_w);
  return fmt::format("_pad{}x{}x{}x{}", p.pad_h, p.pad_w, p.pad_h + p.extra_h, p.pad_w + p.extra_w);
}

// Prints the filters of a 2-D convolution and everything after them.
std::string print_filters(const ConvProblem& p) {
  return fmt::format("_k{}r{}s{}_st{}x{}{}_dil{}x{}_g{}{}", p.k, p.r, p.s, p.stride_h, p.stride_w,
                     print_padding(p), p.dilation_h, p.dilation_w, p.groups,
                     print_epilogue(p.epilogue));
}

std::string print(const ConvProblem& p) {
  const auto head = fmt::format("{}_{}_", to_string(p.direction), to_string(p.dtype));
  if (p.is_3d) {
    return head +
           fmt::format("n{}c{}d{}h{}w{}_k{}t{}r{}s{}_st{}x{}x{}_pad{}x{}x{}_dil{}x{}x{}_g{}{}", p.n,
                       p.c, p.d, p.h, p.w, p.k, p.t, p.r, p.s, p.stride_d, p.stride_h, p.stride_w,
                       p.pad_d, p.pad_h, p.pad_w, p.dilation_d, p.dilation_h, p.dilation_w,
                       p.groups, print_epilogue(p.epilogue));
  }
  return head + print_nchw(p) + print_filters(p);
}

// Prints one layer of a chain. The sizes of the chain's input come before the first layer.
std::string print_layer(const Problem& layer) {
  if (const auto* conv = std::get_if<ConvProblem>(&layer)) return print_filters(*conv);
  if (std::holds_alternative<PoolProblem>(layer)) return "_avgpool";
  const bool is_product = std::holds_alternative<EltwiseProblem>(layer);
  return (is_product ? "_mul" : "_scaleshift") + print_epilogue(epilogue_of(layer));
}

std::string print(const ConvChainProblem& p) {
  const std::vector<std::int64_t> src = input_sizes(p)[0];
  std::string text =
      fmt::format("chain_{}_n{}c{}h{}w{}", to_string(dtype_of(p)), src[0], src[1], src[2], src[3]);
  for (const Problem& layer : p.layers) text += print_layer(layer);
  return text;
}

std::string print(const PoolProblem& p) {
  if (p.kind == PoolKind::kAdaptiveAverage) {
    return fmt::format("avgpool_{}_{}_p{}q{}", to_string(p.dtype), print_nchw(p), p.p, p.q);
  }
  const bool is_max = p.kind == PoolKind::kMax;
  std::string text = fmt::format("{}_{}_{}_r{}s{}_st{}x{}_pad{}x{}", is_max ? "maxpool" : "avgpool",
                                 to_string(p.dtype), print_nchw(p), p.r, p.s, p.stride_h,
                                 p.stride_w, p.pad_h, p.pad_w);
  if (is_max) text += fmt::format("_dil{}x{}", p.dilation_h, p.dilation_w);
  if (p.ceil_mode) text += "_ceil";
  if (!is_max && !p.count_include_pad) text += "_exclpad";
  return text;
}

std::string print(const EltwiseProblem& p) {
  if (p.kind == EltwiseKind::kActivation) {
    TORCHALGO_ASSERT(p.epilogue.size() == 1);
    return fmt::format("{}_{}_{}", to_string(p.epilogue[0]), to_string(p.dtype), print_nchw(p));
  }
  const char* const name = p.kind == EltwiseKind::kAdd   ? "add"
                           : p.kind == EltwiseKind::kMul ? "mul"
                                                         : "sub";
  return fmt::format("{}_{}_{}{}{}", name, to_string(p.dtype), print_nchw(p),
                     p.channelwise ? "_channelwise" : "", print_epilogue(p.epilogue));
}

std::string print(const LayerNormProblem& p) {
  return fmt::format("{}norm_{}_{}_eps{}", to_string(p.kind), to_string(p.dtype), print_nchw(p),
                     p.epsilon);
}

std::string print(const ConcatProblem& p) {
  return fmt::format("concat_{}_n{}c{}h{}w{}{}", to_string(p.dtype), p.n, fmt::join(p.c, "x"), p.h,
                     p.w, p.groups > 1 ? fmt::format("_shuffle{}", p.groups) : "");
}

std::string print(const ResizeProblem& p) {
  const auto target =
      p.scale_h > 0 ? fmt::format("x{}x{}", p.scale_h, p.scale_w) : fmt::format("p{}q{}", p.p, p.q);
  return fmt::format("{}_{}_{}_{}{}", p.kind == ResizeKind::kNearest ? "nearest" : "bilinear",
                     to_string(p.dtype), print_nchw(p), target, p.align_corners ? "_align" : "");
}

std::string print(const LinearProblem& p) {
  return fmt::format("linear_{}_n{}c{}_k{}{}", to_string(p.dtype), p.n, p.c, p.k,
                     print_epilogue(p.epilogue));
}

std::string print(const TransformProblem& p) {
  const auto sizes =
      p.is_3d ? fmt::format("n{}c{}d{}h{}w{}", p.n, p.c, p.d, p.h, p.w) : print_nchw(p);
  return fmt::format("transform_{}_{}_{}_{}", to_string(p.dtype), sizes, to_string(p.from),
                     to_string(p.to));
}

std::string print(const BatchNormProblem& p) {
  const std::string epsilon =
      p.step == BatchNormStep::kMoments ? "" : fmt::format("_eps{}", p.epsilon);
  const Epilogue behind = p.activation ? Epilogue{*p.activation} : p.epilogue;
  return fmt::format("{}_{}_{}{}{}", name_of(kBatchNormSteps, p.step), to_string(p.dtype),
                     print_nchw(p), epsilon, print_epilogue(behind));
}

std::string print(const ActivationGradientProblem& p) {
  return fmt::format("bwd_{}_{}_{}", to_string(p.activation), to_string(p.dtype), print_nchw(p));
}

std::string print(const PoolGradientProblem& p) { return fmt::format("bwd_{}", print(p.pool)); }

std::string print(const AttentionProblem& p) {
  const bool is_linear = p.kind == AttentionKind::kLinear;
  std::string text = fmt::format(
      "{}_{}_n{}{}q{}k{}d{}w{}", is_linear ? "linearattention" : "attention", to_string(p.dtype),
      p.n, p.heads > 0 ? fmt::format("h{}", p.heads) : "", p.queries, p.keys, p.depth, p.width);
  if (is_linear) return text + fmt::format("_eps{}", p.epsilon);
  if (!p.bias.empty()) text += fmt::format("_bias{}", fmt::join(p.bias, "x"));
  if (p.scale) text += fmt::format("_scale{}", *p.scale);
  return text;
}

// A kind whose text is a word, the type, the sizes [n, c, h, w] and then some numbers has two
// functions: its word, and `spell`, which prints the numbers with a Printer and reads them with a
// Reader.
constexpr std::string_view word_of(const ScaleShiftProblem&) { return "scaleshift"; }
void spell(auto& text, ScaleShiftProblem& p) { text.epilogue(p.epilogue); }

constexpr std::string_view word_of(const GroupNormProblem&) { return "groupnorm"; }
void spell(auto& text, GroupNormProblem& p) {
  text.number("_g", 1, p.groups);
  text.require(p.c % p.groups == 0, "groups that divide the channels");
  text.real("_eps", 0, 1, p.epsilon);
  text.epilogue(p.epilogue);
}

constexpr std::string_view word_of(const SliceProblem&) { return "slice"; }
void spell(auto& text, SliceProblem& p) {
  text.number("_k", 1, p.k);
  text.number("from", 0, p.begin);
  text.require(p.begin + p.k <= p.c, "channels that the input has");
}

constexpr std::string_view word_of(const ShuffleProblem&) { return "shuffle"; }
void spell(auto& text, ShuffleProblem& p) {
  text.number("_g", 2, p.groups);
  text.require(p.c % p.groups == 0, "groups that divide the channels");
}

constexpr std::string_view word_of(const PixelShuffleProblem&) { return "pixelshuffle"; }
void spell(auto& text, PixelShuffleProblem& p) {
  text.number("_x", 2, p.factor);
  text.require(p.c % (p.factor * p.factor) == 0, "a factor whose square divides the channels");
}

constexpr std::string_view word_of(const ChannelSumsProblem&) { return "channelsums"; }
void spell(auto& text, ChannelSumsProblem& p) {
  text.flag("_perimage", p.per_image);
  text.flag("_product", p.has_product);
}

// Prints what a `spell` names.
struct Printer {
  std::string text;

  void number(std::string_view label, std::int64_t /*least*/, std::int64_t value) {
    text += fmt::format("{}{}", label, value);
  }
  void real(std::string_view label, double /*least*/, double /*most*/, double value) {
    text += fmt::format("{}{}", label, value);
  }
  void flag(std::string_view label, bool value) { text += value ? label : ""; }
  void epilogue(const Epilogue& value) { text += print_epilogue(value); }
  void require(bool /*holds*/, std::string_view /*what*/) {}
};

template <typename P>
std::string print(P p) {
  Printer out = {fmt::format("{}_{}_{}", word_of(p), to_string(p.dtype), print_nchw(p))};
  spell(out, p);
  return out.text;
}

// Reads a text from left to right. Every error names the position.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text), rest_(text) {}

  [[noreturn]] void fail(std::string_view expected) const {
    throw Error(
        fmt::format("TA4001 '{}' is no problem: expected {} at '{}' (example: "
                    "fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu)",
                    text_, expected, rest_.empty() ? "the end" : rest_));
  }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  bool take(std::string_view literal) {
    if (!rest_.starts_with(literal)) return false;
    rest_.remove_prefix(literal.size());
    return true;
  }
  void expect(std::string_view literal) {
    if (!take(literal)) fail(fmt::format("'{}'", literal));
  }
  std::int64_t number(std::int64_t least) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    const bool has_leading_zero = rest_.size() > 1 && rest_[0] == '0' && end - rest_.data() > 1;
    if (error != std::errc() || value < least || value > kMostNumber || has_leading_zero) {
      fail(fmt::format("a number from {} to {}", least, kMostNumber));
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  // Reads a number from `least` to `most`. Only the spelling that printing gives is accepted.
  double real(double least, double most) {
    double value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(end - rest_.data()));
    const bool is_in_range = error == std::errc() && value >= least && value <= most;
    if (!is_in_range || taken != fmt::format("{}", value + 0.0)) {  // 0 for -0
      fail(fmt::format("a number from {} to {}, as 1e-05", least, most));
    }
    rest_.remove_prefix(taken.size());
    return value;
  }
  std::int64_t size(std::string_view letter) {
    expect(letter);
    return number(1);
  }
  void number(std::string_view label, std::int64_t least, std::int64_t& value) {
    expect(label);
    value = number(least);
  }
  void real(std::string_view label, double least, double most, double& value) {
    expect(label);
    value = real(least, most);
  }
  void flag(std::string_view label, bool& value) { value = take(label); }
  void epilogue(Epilogue& value) { value = epilogue(); }
  void require(bool holds, std::string_view what) const {
    if (!holds) fail(what);
  }
  // Reads the longest name that fits. A name may be the beginning of another one, and may contain
  // "_". A number follows the names for which `takes_number(key)` is true.
  template <typename Key, std::size_t N, typename TakesNumber>
  Key word(const std::array<std::pair<Key, std::string_view>, N>& names, std::string_view what,
           const TakesNumber& takes_number) {
    const std::pair<Key, std::string_view>* found = nullptr;
    for (const auto& entry : names) {
      const std::string_view name = entry.second;
      if (!rest_.starts_with(name)) continue;
      const char next = rest_.size() == name.size() ? '_' : rest_[name.size()];
      const bool is_number = (next >= '0' && next <= '9') || next == '-';
      const bool ends_here = takes_number(entry.first) ? is_number : next == '_' || next == '+';
      const bool is_longer = found == nullptr || name.size() > found->second.size();
      if (ends_here && is_longer) found = &entry;
    }
    if (found == nullptr) fail(what);
    rest_.remove_prefix(found->second.size());
    return found->first;
  }
  template <typename Key, std::size_t N>
  Key word(const std::array<std::pair<Key, std::string_view>, N>& names, std::string_view what) {
    return word(names, what, [](const Key&) { return false; });
  }
  PostOp post_op(std::string_view what) {
    PostOp op = word(kPostOps, what, [](PostOp::Kind kind) { return number_count(kind) > 0; });
    if (op.kind == PostOp::kClamp) {
      op.numbers[0] = real(-kLargestNumber, 0);
      expect("x");
      op.numbers[1] = real(0, kLargestNumber);
    } else if (number_count(op.kind) == 1) {
      op.numbers[0] = real(-kLargestNumber, kLargestNumber);
    }
    return op;
  }
  Epilogue epilogue() {
    Epilogue ops;
    while (take("+")) ops.push_back(post_op("bias, add or an activation"));
    return ops;
  }
  template <typename P>
  void nchw(P& p) {
    p.n = size("n");
    p.c = size("c");
    p.h = size("h");
    p.w = size("w");
  }
  template <typename P>
  void ncdhw(P& p) {  // a problem with d is 3-D
    p.n = size("n");
    p.c = size("c");
    p.is_3d = take("d");
    if (p.is_3d) p.d = number(1);
    p.h = size("h");
    p.w = size("w");
  }
  DType dtype() {
    expect("_");
    const DType dtype = word(kDTypes, "f64, f32, tf32, f16 or bf16");
    expect("_");
    return dtype;
  }
  Layout layout() {
    const std::string_view word = rest_.substr(0, rest_.find('_'));
    const std::optional<Layout> layout = parse_layout(word);
    if (!layout) {
      throw Error(fmt::format("TA4001 '{}' is no problem: {}", text_, refuse_layout(word)));
    }
    rest_.remove_prefix(word.size());
    return *layout;
  }

 private:
  std::string_view text_, rest_;
};

// Reads a pair such as "_st1x1", or a triple for 3-D, with d first.
void read_extent(Reader& in, std::string_view label, std::int64_t least, bool is_3d,
                 std::int64_t& d, std::int64_t& h, std::int64_t& w) {
  in.expect(label);
  if (is_3d) {
    d = in.number(least);
    in.expect("x");
  }
  h = in.number(least);
  in.expect("x");
  w = in.number(least);
}

// Reads the numbers of zeros after the image, if they are written. Only a 2-D forward convolution
// may have them.
void read_padding_after(Reader& in, ConvProblem& p) {
  p.extra_h = p.extra_w = 0;  // in a chain, p had the numbers of the layer before
  const bool may_differ = !p.is_3d && p.direction == Direction::kForward;
  if (!may_differ || !in.take("x")) return;
  p.extra_h = in.number(0) - p.pad_h;
  in.expect("x");
  p.extra_w = in.number(0) - p.pad_w;
  if (is_padded_evenly(p)) in.fail("other zeros after the image than before it");
}

// Reads everything of a convolution that follows the sizes of its input.
void read_filters(Reader& in, ConvProblem& p) {
  p.k = in.size("_k");
  if (p.is_3d) p.t = in.size("t");
  p.r = in.size("r");
  p.s = in.size("s");
  read_extent(in, "_st", 1, p.is_3d, p.stride_d, p.stride_h, p.stride_w);
  read_extent(in, "_pad", 0, p.is_3d, p.pad_d, p.pad_h, p.pad_w);
  read_padding_after(in, p);
  read_extent(in, "_dil", 1, p.is_3d, p.dilation_d, p.dilation_h, p.dilation_w);
  p.groups = in.size("_g");
  p.epilogue = in.epilogue();
  if (p.c % p.groups != 0 || p.k % p.groups != 0) in.fail("groups that divide c and k");
  for (const std::int64_t size : conv_dst_sizes(p)) {
    if (size < 1) in.fail("a filter no larger than the padded image");
  }
}

ConvProblem read_conv(Reader& in, Direction direction) {
  ConvProblem p;
  p.direction = direction;
  p.dtype = in.dtype();
  in.ncdhw(p);
  read_filters(in, p);
  return p;
}

// Reads the first layer of a chain if it is not a convolution; otherwise returns nullopt. `next`
// holds the sizes of the layer's input and gets those of its result.
std::optional<Problem> read_chain_head(Reader& in, ConvProblem& next) {
  const auto sized = [&](auto head) {
    head.dtype = next.dtype;
    head.n = next.n;
    head.c = next.c;
    head.h = next.h;
    head.w = next.w;
    return head;
  };
  if (in.take("_avgpool")) {
    auto pool = sized(PoolProblem());
    pool.kind = PoolKind::kAdaptiveAverage;
    next.h = next.w = 1;
    return pool;
  }
  if (in.take("_scaleshift")) {
    auto affine = sized(ScaleShiftProblem());
    affine.epilogue = in.epilogue();
    return affine;
  }
  if (!in.take("_mul")) return std::nullopt;
  auto product = sized(EltwiseProblem());
  product.kind = EltwiseKind::kMul;
  product.channelwise = true;
  product.epilogue = in.epilogue();
  return product;
}

ConvChainProblem read_chain(Reader& in) {
  ConvChainProblem p;
  ConvProblem conv;
  conv.dtype = in.dtype();
  in.nchw(conv);
  if (auto head = read_chain_head(in, conv)) p.layers.push_back(std::move(*head));
  do {
    read_filters(in, conv);
    const bool is_first = p.layers.empty();
    const bool is_last = has(conv.epilogue, PostOp::kAdd);
    if (is_first && is_last) in.fail("no +add before the last convolution");
    p.layers.emplace_back(conv);
    if (is_last) break;
    const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
    conv.c = dst[1];
    conv.h = dst[2];
    conv.w = dst[3];
  } while (p.layers.size() < 2 || !in.at_end());
  return p;
}

PoolProblem read_pool(Reader& in, bool is_max) {
  PoolProblem p;
  p.kind = is_max ? PoolKind::kMax : PoolKind::kAverage;
  p.dtype = in.dtype();
  in.nchw(p);
  if (!is_max && in.take("_p")) {
    p.kind = PoolKind::kAdaptiveAverage;
    p.p = in.number(1);
    p.q = in.size("q");
    return p;
  }
  std::int64_t unused = 0;
  p.r = in.size("_r");
  p.s = in.size("s");
  read_extent(in, "_st", 1, false, unused, p.stride_h, p.stride_w);
  read_extent(in, "_pad", 0, false, unused, p.pad_h, p.pad_w);
  if (is_max) read_extent(in, "_dil", 1, false, unused, p.dilation_h, p.dilation_w);
  p.ceil_mode = in.take("_ceil");
  p.count_include_pad = is_max || !in.take("_exclpad");
  if (2 * p.pad_h > p.r || 2 * p.pad_w > p.s) in.fail("padding of at most half the window");
  for (const std::int64_t size : result_sizes(p)) {
    if (size < 1) in.fail("a window no larger than the padded image");
  }
  return p;
}

EltwiseProblem read_eltwise(Reader& in, EltwiseKind kind, const PostOp& activation) {
  EltwiseProblem p;
  p.kind = kind;
  p.dtype = in.dtype();
  in.nchw(p);
  if (kind == EltwiseKind::kActivation) {
    p.epilogue = {activation};
    return p;
  }
  p.channelwise = kind != EltwiseKind::kSub && in.take("_channelwise");
  p.epilogue = in.epilogue();
  return p;
}

LayerNormProblem read_layer_norm(Reader& in, LayerNormKind kind) {
  LayerNormProblem p;
  p.kind = kind;
  p.dtype = in.dtype();
  in.nchw(p);
  in.expect("_eps");
  p.epsilon = in.real(0, 1);
  return p;
}

BatchNormProblem read_batch_norm(Reader& in, BatchNormStep step) {
  BatchNormProblem p;
  p.step = step;
  p.dtype = in.dtype();
  in.nchw(p);
  if (step != BatchNormStep::kMoments) {
    in.expect("_eps");
    p.epsilon = in.real(0, 1);
  }
  if (step == BatchNormStep::kNormalize) {
    p.epilogue = in.epilogue();
  } else if (step != BatchNormStep::kMoments && in.take("+")) {
    p.activation = in.post_op("an activation");
    if (!is_activation(*p.activation)) in.fail("an activation before");
  }
  return p;
}

// Reads what follows "bwd_" if the problem is neither a convolution's nor a batch norm's.
Problem read_gradient(Reader& in) {
  if (in.take("maxpool")) return PoolGradientProblem{read_pool(in, true)};
  if (in.take("avgpool")) return PoolGradientProblem{read_pool(in, false)};
  ActivationGradientProblem p;
  p.activation = in.post_op("data, filter, a pooling, a step of a batch norm or an activation");
  if (!is_activation(p.activation)) in.fail("an activation before");
  p.dtype = in.dtype();
  in.nchw(p);
  return p;
}

ConcatProblem read_concat(Reader& in) {
  ConcatProblem p;
  p.dtype = in.dtype();
  p.n = in.size("n");
  p.c.push_back(in.size("c"));
  while (in.take("x")) p.c.push_back(in.number(1));
  p.h = in.size("h");
  p.w = in.size("w");
  if (in.take("_shuffle")) {
    p.groups = in.number(2);
    if (result_sizes(p)[1] % p.groups != 0) in.fail("groups that divide the channels");
  }
  return p;
}

ResizeProblem read_resize(Reader& in, ResizeKind kind) {
  ResizeProblem p;
  p.kind = kind;
  p.dtype = in.dtype();
  in.nchw(p);
  if (in.take("_x")) {
    p.scale_h = in.number(1);
    p.scale_w = in.size("x");
    p.p = p.h * p.scale_h;
    p.q = p.w * p.scale_w;
  } else {
    p.p = in.size("_p");
    p.q = in.size("q");
  }
  p.align_corners = kind == ResizeKind::kBilinear && in.take("_align");
  return p;
}

AttentionProblem read_attention(Reader& in, AttentionKind kind) {
  AttentionProblem p;
  p.kind = kind;
  p.dtype = in.dtype();
  p.n = in.size("n");
  if (in.take("h")) p.heads = in.number(1);
  p.queries = in.size("q");
  p.keys = in.size("k");
  p.depth = in.size("d");
  p.width = in.size("w");
  if (kind == AttentionKind::kLinear) {
    in.expect("_eps");
    p.epsilon = in.real(0, 1);
    return p;
  }
  if (in.take("_bias")) {
    do p.bias.push_back(in.number(1));
    while (in.take("x"));
    if (!can_broadcast_bias(p)) in.fail("a bias that broadcasts to the queries and keys");
  }
  if (in.take("_scale")) p.scale = in.real(-kLargestNumber, kLargestNumber);
  return p;
}

TransformProblem read_transform(Reader& in) {
  TransformProblem p;
  p.dtype = in.dtype();
  in.ncdhw(p);
  in.expect("_");
  p.from = in.layout();
  in.expect("_");
  p.to = in.layout();
  return p;
}

// Reads a problem of one of the kinds, from number `kind` on, that have a word and a `spell`.
// Returns nullopt if the text begins with another word.
template <std::size_t kind = 0>
std::optional<Problem> read_spelled(Reader& in) {
  if constexpr (kind == std::variant_size_v<Problem>) {
    return std::nullopt;
  } else {
    using P = std::variant_alternative_t<kind, Problem>;
    if constexpr (requires(P p) { word_of(p); }) {
      if (P p; in.take(word_of(p))) {
        p.dtype = in.dtype();
        in.nchw(p);
        spell(in, p);
        return p;
      }
    }
    return read_spelled<kind + 1>(in);
  }
}

Problem read_problem(Reader& in) {
  if (std::optional<Problem> spelled = read_spelled(in)) return *std::move(spelled);
  for (const auto& [direction, name] : kDirections) {
    if (in.take(name)) return read_conv(in, direction);
  }
  for (const auto& [step, name] : kBatchNormSteps) {
    if (in.take(name)) return read_batch_norm(in, step);
  }
  if (in.take("bwd_")) return read_gradient(in);
  if (in.take("chain")) return read_chain(in);
  if (in.take("maxpool")) return read_pool(in, true);
  if (in.take("avgpool")) return read_pool(in, false);
  if (in.take("add")) return read_eltwise(in, EltwiseKind::kAdd, {});
  if (in.take("mul")) return read_eltwise(in, EltwiseKind::kMul, {});
  if (in.take("sub")) return read_eltwise(in, EltwiseKind::kSub, {});
  for (const auto& [kind, name] : kLayerNormKinds) {
    if (in.take(fmt::format("{}norm", name))) return read_layer_norm(in, kind);
  }
  if (in.take("concat")) return read_concat(in);
  if (in.take("nearest")) return read_resize(in, ResizeKind::kNearest);
  if (in.take("bilinear")) return read_resize(in, ResizeKind::kBilinear);
  if (in.take("transform")) return read_transform(in);
  if (in.take("attention")) return read_attention(in, AttentionKind::kSoftmax);
  if (in.take("linearattention")) return read_attention(in, AttentionKind::kLinear);
  if (in.take("linear")) {
    LinearProblem p;
    p.dtype = in.dtype();
    p.n = in.size("n");
    p.c = in.size("c");
    p.k = in.size("_k");
    p.epilogue = in.epilogue();
    return p;
  }
  const PostOp activation = in.post_op("an operation: fwd, bwd_data, maxpool, add, relu, ...");
  return read_eltwise(in, EltwiseKind::kActivation, activation);
}

}  // namespace

std::string_view to_string(DType dtype) { return name_of(kDTypes, dtype); }
std::string_view to_string(Direction direction) { return name_of(kDirections, direction); }
std::string_view to_string(PostOp::Kind kind) { return name_of(kPostOps, kind); }
std::string_view to_string(LayerNormKind kind) { return name_of(kLayerNormKinds, kind); }

std::optional<LayerNormKind> parse_layer_norm_kind(std::string_view text) {
  for (const auto& [kind, name] : kLayerNormKinds) {
    if (name == text) return kind;
  }
  return std::nullopt;
}

std::string to_string(const PostOp& op) {
  const int count = number_count(op.kind);
  return fmt::format("{}{}", to_string(op.kind),
                     fmt::join(op.numbers.begin(), op.numbers.begin() + count, "x"));
}

std::string to_string(const Problem& problem) {
  return std::visit([](const auto& p) { return print(p); }, problem);
}

Problem parse_problem(std::string_view text) {
  Reader in(text);
  Problem problem = read_problem(in);
  if (!in.at_end()) in.fail("the end");
  const std::string refusal = refuse_sizes(problem);
  TORCHALGO_CHECK(refusal.empty(), "TA4001 '{}' is too large: {}", text, refusal);
  return problem;
}

}  // namespace torchalgo
