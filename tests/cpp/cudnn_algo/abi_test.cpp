// SPDX-License-Identifier: BSD-3-Clause
// Our constants against the headers of cuDNN, where the build found some.
#include "cudnn_algo/abi.h"

#include <gtest/gtest.h>

#include "cudnn_algo/api.h"
#include "cudnn_algo/knobs.h"

#if __has_include(<cudnn.h>) && __has_include(<cuda_runtime_api.h>)
#include <cudnn.h>

namespace torchalgo::cudnn {
namespace {

// Deprecated enumerators are still part of the binary interface.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
SAME(DataType::kFloat, CUDNN_DATA_FLOAT);
SAME(DataType::kDouble, CUDNN_DATA_DOUBLE);
SAME(DataType::kHalf, CUDNN_DATA_HALF);
SAME(DataType::kBfloat16, CUDNN_DATA_BFLOAT16);
SAME(MathType::kDefault, CUDNN_DEFAULT_MATH);
SAME(MathType::kTensorOp, CUDNN_TENSOR_OP_MATH);
SAME(MathType::kTensorOpAllowConversion, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
SAME(MathType::kFma, CUDNN_FMA_MATH);
SAME(TensorFormat::kNchw, CUDNN_TENSOR_NCHW);
SAME(TensorFormat::kNhwc, CUDNN_TENSOR_NHWC);
SAME(ConvolutionMode::kConvolution, CUDNN_CONVOLUTION);
SAME(ConvolutionMode::kCrossCorrelation, CUDNN_CROSS_CORRELATION);
SAME(PointwiseMode::kAdd, CUDNN_POINTWISE_ADD);
SAME(PointwiseMode::kReluForward, CUDNN_POINTWISE_RELU_FWD);
SAME(PointwiseMode::kGeluForward, CUDNN_POINTWISE_GELU_FWD);
SAME(PointwiseMode::kSwishForward, CUDNN_POINTWISE_SWISH_FWD);
SAME(HeuristicMode::kInstant, CUDNN_HEUR_MODE_INSTANT);
SAME(HeuristicMode::kB, CUDNN_HEUR_MODE_B);
SAME(HeuristicMode::kFallback, CUDNN_HEUR_MODE_FALLBACK);
SAME(HeuristicMode::kA, CUDNN_HEUR_MODE_A);
SAME(NumericalNote::kTensorCore, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
SAME(NumericalNote::kDownConvertInputs, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
SAME(NumericalNote::kReducedPrecisionReduction, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
SAME(NumericalNote::kFft, CUDNN_NUMERICAL_NOTE_FFT);
SAME(NumericalNote::kNondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
SAME(NumericalNote::kWinograd, CUDNN_NUMERICAL_NOTE_WINOGRAD);
SAME(NumericalNote::kWinogradTile4x4, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4);
SAME(NumericalNote::kWinogradTile6x6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6);
SAME(NumericalNote::kWinogradTile13x13, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
SAME(NumericalNote::kStrictNanProp, CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP);
SAME(BehaviorNote::kRuntimeCompilation, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION);
SAME(BehaviorNote::kRequiresFilterInt8x32Reorder,
     CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER);
SAME(BehaviorNote::kRequiresBiasInt8x32Reorder, CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER);
SAME(BehaviorNote::kSupportsCudaGraphNativeApi, CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API);
SAME(BehaviorNote::kCublasLtDependency, CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY);
SAME(DescriptorType::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
SAME(DescriptorType::kConvolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
SAME(DescriptorType::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
SAME(DescriptorType::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
SAME(DescriptorType::kEngineHeuristic, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
SAME(DescriptorType::kExecutionPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
SAME(DescriptorType::kKnobChoice, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
SAME(DescriptorType::kKnobInfo, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
SAME(DescriptorType::kOperationConvolutionForward,
     CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
SAME(DescriptorType::kOperationConvolutionBackwardFilter,
     CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
SAME(DescriptorType::kOperationConvolutionBackwardData,
     CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
SAME(DescriptorType::kOperationPointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
SAME(DescriptorType::kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
SAME(DescriptorType::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(DescriptorType::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
SAME(DescriptorType::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
SAME(AttributeName::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
SAME(AttributeName::kPointwiseMathPrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
SAME(AttributeName::kPointwiseReluLowerClip, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP);
SAME(AttributeName::kConvolutionComputeType, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
SAME(AttributeName::kConvolutionMode, CUDNN_ATTR_CONVOLUTION_CONV_MODE);
SAME(AttributeName::kConvolutionDilations, CUDNN_ATTR_CONVOLUTION_DILATIONS);
SAME(AttributeName::kConvolutionFilterStrides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
SAME(AttributeName::kConvolutionPostPaddings, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
SAME(AttributeName::kConvolutionPrePaddings, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
SAME(AttributeName::kConvolutionSpatialDims, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
SAME(AttributeName::kHeuristicMode, CUDNN_ATTR_ENGINEHEUR_MODE);
SAME(AttributeName::kHeuristicOperationGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
SAME(AttributeName::kHeuristicResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
SAME(AttributeName::kHeuristicDeviceProperties, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
SAME(AttributeName::kEngineConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE);
SAME(AttributeName::kEngineConfigKnobChoices, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
SAME(AttributeName::kEngineConfigWorkspaceSize, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE);
SAME(AttributeName::kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
SAME(AttributeName::kPlanEngineConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
SAME(AttributeName::kPlanWorkspaceSize, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
SAME(AttributeName::kPlanJson, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
SAME(AttributeName::kPlanDeviceProperties, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
SAME(AttributeName::kKnobChoiceType, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
SAME(AttributeName::kKnobChoiceValue, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
SAME(AttributeName::kForwardAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
SAME(AttributeName::kForwardBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
SAME(AttributeName::kForwardConvolution, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
SAME(AttributeName::kForwardW, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
SAME(AttributeName::kForwardX, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
SAME(AttributeName::kForwardY, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
SAME(AttributeName::kBackwardDataAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
SAME(AttributeName::kBackwardDataBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
SAME(AttributeName::kBackwardDataConvolution, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
SAME(AttributeName::kBackwardDataW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
SAME(AttributeName::kBackwardDataDx, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
SAME(AttributeName::kBackwardDataDy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
SAME(AttributeName::kBackwardFilterAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
SAME(AttributeName::kBackwardFilterBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
SAME(AttributeName::kBackwardFilterConvolution,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
SAME(AttributeName::kBackwardFilterDw, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
SAME(AttributeName::kBackwardFilterX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
SAME(AttributeName::kBackwardFilterDy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
SAME(AttributeName::kOperationPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
SAME(AttributeName::kOperationPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
SAME(AttributeName::kOperationPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
SAME(AttributeName::kOperationPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
SAME(AttributeName::kOperationGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
SAME(AttributeName::kOperationGraphOps, CUDNN_ATTR_OPERATIONGRAPH_OPS);
SAME(AttributeName::kOperationGraphEngineGlobalCount,
     CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
SAME(AttributeName::kTensorByteAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
SAME(AttributeName::kTensorDataType, CUDNN_ATTR_TENSOR_DATA_TYPE);
SAME(AttributeName::kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
SAME(AttributeName::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
SAME(AttributeName::kTensorUniqueId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
SAME(AttributeName::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
SAME(AttributeName::kVariantPackUniqueIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
SAME(AttributeName::kVariantPackDataPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
SAME(AttributeName::kVariantPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(AttributeName::kKnobInfoType, CUDNN_ATTR_KNOB_INFO_TYPE);
SAME(AttributeName::kKnobInfoMaximum, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE);
SAME(AttributeName::kKnobInfoMinimum, CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE);
SAME(AttributeName::kKnobInfoStride, CUDNN_ATTR_KNOB_INFO_STRIDE);
SAME(AttributeName::kEngineOperationGraph, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
SAME(AttributeName::kEngineGlobalIndex, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
SAME(AttributeName::kEngineKnobInfo, CUDNN_ATTR_ENGINE_KNOB_INFO);
SAME(AttributeName::kEngineNumericalNote, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
SAME(AttributeName::kEngineBehaviorNote, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE);
SAME(AttributeName::kEngineDeviceProperties, CUDNN_ATTR_ENGINE_DEVICEPROP);
SAME(AttributeName::kDevicePropertiesDeviceId, CUDNN_ATTR_DEVICEPROP_DEVICE_ID);
SAME(AttributeName::kDevicePropertiesHandle, CUDNN_ATTR_DEVICEPROP_HANDLE);
SAME(AttributeName::kDevicePropertiesJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
SAME(AttributeType::kHandle, CUDNN_TYPE_HANDLE);
SAME(AttributeType::kDataType, CUDNN_TYPE_DATA_TYPE);
SAME(AttributeType::kBoolean, CUDNN_TYPE_BOOLEAN);
SAME(AttributeType::kInt64, CUDNN_TYPE_INT64);
SAME(AttributeType::kFloat, CUDNN_TYPE_FLOAT);
SAME(AttributeType::kDouble, CUDNN_TYPE_DOUBLE);
SAME(AttributeType::kVoidPointer, CUDNN_TYPE_VOID_PTR);
SAME(AttributeType::kConvolutionMode, CUDNN_TYPE_CONVOLUTION_MODE);
SAME(AttributeType::kHeuristicMode, CUDNN_TYPE_HEUR_MODE);
SAME(AttributeType::kKnobType, CUDNN_TYPE_KNOB_TYPE);
SAME(AttributeType::kNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE);
SAME(AttributeType::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
SAME(AttributeType::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
SAME(AttributeType::kBehaviorNote, CUDNN_TYPE_BEHAVIOR_NOTE);
SAME(AttributeType::kInt32, CUDNN_TYPE_INT32);
SAME(AttributeType::kChar, CUDNN_TYPE_CHAR);
SAME(kSuccess, CUDNN_STATUS_SUCCESS);
SAME(kNotInitialized, CUDNN_STATUS_NOT_INITIALIZED);
SAME(kSublibraryVersionMismatch, CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH);
SAME(kSublibraryLoadingFailed, CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED);
SAME(kBadParam, CUDNN_STATUS_BAD_PARAM);
SAME(kBadParamNullPointer, CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
SAME(kNotSupported, CUDNN_STATUS_NOT_SUPPORTED);
SAME(kNotSupportedGraphPattern, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
SAME(kNotSupportedShape, CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
SAME(kNotSupportedDataType, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
SAME(kNotSupportedLayout, CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
SAME(kNotSupportedIncompatibleCudaDriver, CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER);
SAME(kNotSupportedIncompatibleCudart, CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART);
SAME(kNotSupportedArchMismatch, CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
SAME(kNotSupportedRuntimePrerequisiteMissing,
     CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING);
SAME(kNotSupportedSublibraryUnavailable, CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE);
SAME(kNotSupportedSharedMemoryInsufficient, CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT);
SAME(kNotSupportedPadding, CUDNN_STATUS_NOT_SUPPORTED_PADDING);
SAME(kInternalError, CUDNN_STATUS_INTERNAL_ERROR);
SAME(kInternalErrorHostAllocationFailed, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
SAME(kExecutionFailed, CUDNN_STATUS_EXECUTION_FAILED);
SAME(kExecutionFailedCudaDriver, CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER);
SAME(kKnobTypeCount, CUDNN_KNOB_TYPE_COUNTS);
#undef SAME

static_assert(sizeof(cudnnStatus_t) == sizeof(Status));
static_assert(sizeof(cudnnBackendKnobType_t) == sizeof(KnobType));
static_assert(sizeof(cudnnBackendAttributeName_t) == sizeof(AttributeName));
static_assert(sizeof(cudnnBackendAttributeType_t) == sizeof(AttributeType));
static_assert(sizeof(cudnnBackendDescriptorType_t) == sizeof(DescriptorType));
static_assert(sizeof(cudnnDataType_t) == sizeof(DataType));
static_assert(std::is_same_v<cudnnBackendDescriptor_t, Descriptor>);

TEST(Abi, NamesKnobsAsTheHeadersDo) {
#define SAME_KNOB(name) EXPECT_EQ(knob_name(CUDNN_KNOB_TYPE_##name), #name)
  SAME_KNOB(SPLIT_K);
  SAME_KNOB(SWIZZLE);
  SAME_KNOB(TILE_SIZE);
  SAME_KNOB(USE_TEX);
  SAME_KNOB(EDGE);
  SAME_KNOB(KBLOCK);
  SAME_KNOB(LDGA);
  SAME_KNOB(LDGB);
  SAME_KNOB(CHUNK_K);
  SAME_KNOB(SPLIT_H);
  SAME_KNOB(WINO_TILE);
  SAME_KNOB(MULTIPLY);
  SAME_KNOB(SPLIT_K_BUF);
  SAME_KNOB(TILEK);
  SAME_KNOB(STAGES);
  SAME_KNOB(REDUCTION_MODE);
  SAME_KNOB(CTA_SPLIT_K_MODE);
  SAME_KNOB(SPLIT_K_SLC);
  SAME_KNOB(IDX_MODE);
  SAME_KNOB(SLICED);
  SAME_KNOB(SPLIT_RS);
  SAME_KNOB(SINGLEBUFFER);
  SAME_KNOB(LDGC);
  SAME_KNOB(SPECFILT);
  SAME_KNOB(KERNEL_CFG);
  SAME_KNOB(WORKSPACE);
  SAME_KNOB(TILE_CGA);
  SAME_KNOB(TILE_CGA_M);
  SAME_KNOB(TILE_CGA_N);
  SAME_KNOB(BLOCK_SIZE);
  SAME_KNOB(OCCUPANCY);
  SAME_KNOB(ARRAY_SIZE_PER_THREAD);
  SAME_KNOB(NUM_C_PER_BLOCK);
  SAME_KNOB(SPLIT_COLS);
  SAME_KNOB(TILE_ROWS);
  SAME_KNOB(TILE_COLS);
  SAME_KNOB(LOAD_SIZE);
  SAME_KNOB(CTA_COUNT);
  SAME_KNOB(STREAM_K);
  SAME_KNOB(SPLIT_P_SLC);
  SAME_KNOB(TILE_M);
  SAME_KNOB(TILE_N);
  SAME_KNOB(WARP_SPEC_CFG);
  SAME_KNOB(SWAP_AB);
#undef SAME_KNOB
}

}  // namespace
}  // namespace torchalgo::cudnn

#else

TEST(Abi, NamesKnobsAsTheHeadersDo) { GTEST_SKIP() << "the build found no headers of cuDNN"; }

#endif
