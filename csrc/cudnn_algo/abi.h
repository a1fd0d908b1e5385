// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// The values of cuDNN 9's C interface that torchalgo passes or reads, from cudnn_graph_v9.h,
/// cudnn_ops_v9.h and cudnn_cnn_v9.h of 9.19. They are a binary interface, so cuDNN 9 never
/// renumbers them. abi_test.cpp compares each with the headers if these are installed.
namespace torchalgo::cudnn {

/// cudnnStatus_t. It is a plain int because a newer cuDNN may have values that this list lacks.
using Status = int;
inline constexpr Status kSuccess = 0;
inline constexpr Status kNotInitialized = 1001;
inline constexpr Status kSublibraryVersionMismatch = 1002;
inline constexpr Status kSublibraryLoadingFailed = 1008;
inline constexpr Status kBadParam = 2000;
inline constexpr Status kBadParamNullPointer = 2002;
inline constexpr Status kNotSupported = 3000;
inline constexpr Status kNotSupportedGraphPattern = 3001;
inline constexpr Status kNotSupportedShape = 3002;
inline constexpr Status kNotSupportedDataType = 3003;
inline constexpr Status kNotSupportedLayout = 3004;
inline constexpr Status kNotSupportedIncompatibleCudaDriver = 3005;
inline constexpr Status kNotSupportedIncompatibleCudart = 3006;
inline constexpr Status kNotSupportedArchMismatch = 3007;
inline constexpr Status kNotSupportedRuntimePrerequisiteMissing = 3008;
inline constexpr Status kNotSupportedSublibraryUnavailable = 3009;
inline constexpr Status kNotSupportedSharedMemoryInsufficient = 3010;
inline constexpr Status kNotSupportedPadding = 3011;
inline constexpr Status kInternalError = 4000;
inline constexpr Status kInternalErrorHostAllocationFailed = 4003;
inline constexpr Status kExecutionFailed = 5000;
inline constexpr Status kExecutionFailedCudaDriver = 5001;

enum class DataType : int { kFloat = 0, kDouble = 1, kHalf = 2, kBfloat16 = 9 };

enum class MathType : int { kDefault = 0, kTensorOp = 1, kTensorOpAllowConversion = 2, kFma = 3 };

enum class TensorFormat : int { kNchw = 0, kNhwc = 1 };

enum class ConvolutionMode : int { kConvolution = 0, kCrossCorrelation = 1 };

enum class PointwiseMode : int {
  kAdd = 0,
  kReluForward = 100,
  kGeluForward = 104,
  kSwishForward = 106
};

enum class HeuristicMode : int { kInstant = 0, kB = 1, kFallback = 2, kA = 3 };

enum class NumericalNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
  kWinogradTile4x4 = 6,
  kWinogradTile6x6 = 7,
  kWinogradTile13x13 = 8,
  kStrictNanProp = 9
};

enum class BehaviorNote : int {
  kRuntimeCompilation = 0,
  kRequiresFilterInt8x32Reorder = 1,
  kRequiresBiasInt8x32Reorder = 2,
  kSupportsCudaGraphNativeApi = 3,
  kCublasLtDependency = 4
};

/// cudnnBackendDescriptorType_t.
enum class DescriptorType : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristic = 4,
  kExecutionPlan = 5,
  kKnobChoice = 7,
  kKnobInfo = 8,
  kOperationConvolutionForward = 10,
  kOperationConvolutionBackwardFilter = 11,
  kOperationConvolutionBackwardData = 12,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kDeviceProperties = 38
};

/// cudnnBackendAttributeName_t.
enum class AttributeName : int {
  kPointwiseMode = 0,
  kPointwiseMathPrecision = 1,
  kPointwiseReluLowerClip = 3,
  kConvolutionComputeType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionFilterStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDims = 106,
  kHeuristicMode = 200,
  kHeuristicOperationGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDeviceProperties = 204,
  kEngineConfigEngine = 300,
  kEngineConfigKnobChoices = 302,
  kEngineConfigWorkspaceSize = 303,
  kPlanHandle = 400,
  kPlanEngineConfig = 401,
  kPlanWorkspaceSize = 402,
  kPlanJson = 405,
  kPlanDeviceProperties = 407,
  kKnobChoiceType = 600,
  kKnobChoiceValue = 601,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardW = 703,
  kForwardX = 704,
  kForwardY = 705,
  kBackwardDataAlpha = 706,
  kBackwardDataBeta = 707,
  kBackwardDataConvolution = 708,
  kBackwardDataW = 709,
  kBackwardDataDx = 710,
  kBackwardDataDy = 711,
  kBackwardFilterAlpha = 712,
  kBackwardFilterBeta = 713,
  kBackwardFilterConvolution = 714,
  kBackwardFilterDw = 715,
  kBackwardFilterX = 716,
  kBackwardFilterDy = 717,
  kOperationPointwiseDescriptor = 750,
  kOperationPointwiseX = 751,
  kOperationPointwiseB = 752,
  kOperationPointwiseY = 753,
  kOperationGraphHandle = 800,
  kOperationGraphOps = 801,
  kOperationGraphEngineGlobalCount = 802,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kVariantPackUniqueIds = 1000,
  kVariantPackDataPointers = 1001,
  kVariantPackWorkspace = 1003,
  kKnobInfoType = 1200,
  kKnobInfoMaximum = 1201,
  kKnobInfoMinimum = 1202,
  kKnobInfoStride = 1203,
  kEngineOperationGraph = 1300,
  kEngineGlobalIndex = 1301,
  kEngineKnobInfo = 1302,
  kEngineNumericalNote = 1303,
  kEngineBehaviorNote = 1305,
  kEngineDeviceProperties = 1307,
  kDevicePropertiesDeviceId = 2700,
  kDevicePropertiesHandle = 2701,
  kDevicePropertiesJson = 2702
};

/// cudnnBackendAttributeType_t.
enum class AttributeType : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kDouble = 5,
  kVoidPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kKnobType = 9,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kBehaviorNote = 19,
  kInt32 = 23,
  kChar = 24
};

/// cudnnBackendKnobType_t. It is an int because a newer cuDNN may have more types. knobs.h has the
/// names.
using KnobType = int;
inline constexpr KnobType kKnobTypeCount = 44;  // in 9.19

}  // namespace torchalgo::cudnn
