# SPDX-License-Identifier: BSD-3-Clause
"""The parts of Caffe's files that are read, as protobuf messages that are made at run time.

The names are those of caffe.proto. A field is "name type"; "*" marks repeated ones, "=" a default,
"A|B" the names of an enum. In files of weights, "@" gives the number of a field on disk. Texts have
names instead of numbers, so their fields are numbered here. Integers have 64 bits, so that a
negative size reaches the checks of its layer.
"""

from __future__ import annotations

import functools
import re
from typing import Any

_WINDOW = "pad_h int64, pad_w int64, kernel_h int64, kernel_w int64, stride_h int64, stride_w int64"
# The parameters of layers. Text with another field in them is refused; HARMLESS ones are skipped.
PARAMETERS = f"""
argmax_param: out_max_val bool, top_k int64=1, axis int64
batch_norm_param: use_global_stats bool=true, eps float=1e-5
bias_param: axis int64=1, num_axes int64=1
concat_param: axis int64=1, concat_dim int64=1
convolution_param: num_output int64, bias_term bool=true, pad int64*, kernel_size int64*, \
stride int64*, dilation int64*, group int64=1, axis int64=1, {_WINDOW}
crop_param: axis int64=2, offset int64*
dropout_param: dropout_ratio float
eltwise_param: operation PROD|SUM|MAX=SUM, coeff float*
elu_param: alpha float=1
exp_param: base float=-1, scale float=1, shift float=0
flatten_param: axis int64=1, end_axis int64=-1
inner_product_param: num_output int64, bias_term bool=true, axis int64=1, transpose bool
input_param: shape Shape*
log_param: base float=-1, scale float=1, shift float=0
lrn_param: local_size int64=5, alpha float=1, beta float=0.75, k float=1, \
norm_region ACROSS_CHANNELS|WITHIN_CHANNEL=ACROSS_CHANNELS
permute_param: order int64*
pooling_param: pool MAX|AVE|STOCHASTIC=MAX, kernel_size int64, stride int64, pad int64, {_WINDOW}, \
global_pooling bool, round_mode CEIL|FLOOR=CEIL, ceil_mode bool=true
power_param: power float=1, scale float=1, shift float=0
prelu_param: channel_shared bool
relu_param: negative_slope float=0
reshape_param: shape Shape, axis int64=0, num_axes int64=-1
scale_param: axis int64=1, num_axes int64=1, bias_term bool
slice_param: slice_point int64*, axis int64=1, slice_dim int64=1
softmax_param: axis int64=1
"""
HARMLESS = {
    "bias_filler", "engine", "filler", "force_nd_im2col", "moving_average_fraction",
    "stable_prod_grad", "weight_filler",
}  # fmt: skip
_LAYER = "name string, bottom string*, top string*, include Rule*, exclude Rule*"
MESSAGES = f"""
Shape: dim int64*
Rule: phase TRAIN|TEST, min_level int64, max_level int64, stage string*, not_stage string*
State: level int64, stage string*
Param: name string
Layer: {_LAYER}, type string, param Param*
V1Layer: {_LAYER}, param string*, type NONE|ACCURACY|BNLL|CONCAT|CONVOLUTION|DATA|DROPOUT|\
EUCLIDEAN_LOSS|FLATTEN|HDF5_DATA|HDF5_OUTPUT|IM2COL|IMAGE_DATA|INFOGAIN_LOSS|INNER_PRODUCT|LRN|\
MULTINOMIAL_LOGISTIC_LOSS|POOLING|RELU|SIGMOID|SOFTMAX|SOFTMAX_LOSS|SPLIT|TANH|WINDOW_DATA|ELTWISE|\
POWER|SIGMOID_CROSS_ENTROPY_LOSS|HINGE_LOSS|MEMORY_DATA|ARGMAX|THRESHOLD|DUMMY_DATA|SLICE|MVN|\
ABSVAL|SILENCE|CONTRASTIVE_LOSS|EXP|DECONVOLUTION
Net: input string*, input_dim int64*, input_shape Shape*, state State, layer Layer*, layers V1Layer*
BlobShape: dim@1 int64*
Blob: num@1 int32, channels@2 int32, height@3 int32, width@4 int32, data@5 bytes*, \
shape@7 BlobShape, double_data@8 bytes*
V1Weights: name@4 bytes, blobs@6 Blob*
LayerWeights: name@1 bytes, blobs@7 Blob*
Weights: layers@2 V1Weights*, layer@100 LayerWeights*
"""
_ODD_NAMES = {
    "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "HDF5_DATA": "HDF5Data", "LRN": "LRN",
    "MVN": "MVN", "RELU": "ReLU", "SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH",
}  # fmt: skip


def type_of(layer: Any) -> str:
    """Returns the type of a layer as the present format spells it: "InnerProduct"."""
    if isinstance(layer.type, str):
        return layer.type
    name = layer.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[layer.type].name
    return _ODD_NAMES.get(name) or "".join(part.capitalize() for part in name.split("_"))


@functools.cache
def messages() -> tuple[Any, Any]:
    """Returns the classes of a network's text and of a file of weights.

    Raises: ImportError if protobuf is missing.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="caffe", package="caffe", syntax="proto2")
    of_layers = "".join(
        f", {line.split(':')[0]} {line.split(':')[0]}" for line in _lines(PARAMETERS)
    )
    for line in _lines(PARAMETERS + MESSAGES):
        name, _, fields = line.partition(": ")
        fields += of_layers if name in ("Layer", "V1Layer") else ""
        message = file.message_type.add(name=name)
        for i, field in enumerate(fields.split(", ")):
            _add_field(message, i + 1, *field.split(" "))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    net, weights = (pool.FindMessageTypeByName(f"caffe.{name}") for name in ("Net", "Weights"))
    return message_factory.GetMessageClass(net), message_factory.GetMessageClass(weights)


def _lines(table: str) -> list[str]:
    return [line for line in table.splitlines() if line]


def _add_field(message: Any, number: int, name: str, kind: str) -> None:
    name, _, on_disk = name.partition("@")
    kind, _, default = kind.partition("=")
    field = message.field.add(name=name, number=int(on_disk or number))
    field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    kind = kind.rstrip("*")
    if default:
        field.default_value = default
    if "|" in kind:
        enum = message.enum_type.add(name=f"{name}_values")
        for i, value in enumerate(kind.split("|")):
            enum.value.add(name=value, number=i)
        field.type, field.type_name = field.TYPE_ENUM, f".caffe.{message.name}.{enum.name}"
    elif hasattr(field, f"TYPE_{kind.upper()}"):
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".caffe.{kind}"


_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*|[{}<>]|[A-Za-z_]\w*(?=\s*[:{<])'
)


def unread_field(text: str) -> str:
    """Returns the first field of a layer's parameters that is not read; empty if there is none.

    Args:
        text: a network that protobuf has parsed. It skips unknown fields, some of which would
            change the results of a layer.
    """
    stack, field = [messages()[0].DESCRIPTOR], None
    for match in _TOKEN.finditer(text):
        token, owner = match[0], stack[-1]
        if token in "{<":
            stack.append(field.message_type if field else None)
        elif token in "}>":
            stack = stack[:-1] or stack
        elif token[0] not in "\"'#":
            field = owner.fields_by_name.get(token) if owner else None
            is_parameter = owner and owner.name.endswith("_param")
            if is_parameter and field is None and token not in HARMLESS:
                return (
                    f"line {text.count(chr(10), 0, match.start()) + 1}: {owner.name} {{ {token} }}"
                )
    return ""
