"""Names of torch's functions and methods of tensors, by what they do to a layer's output."""

from torch import nn

from fire_core.weights.topology import words

# Methods behind operators, and other names of the same functions.
OTHER_NAMES = {"rmul": "mul", "imul": "mul", "multiply": "mul", "radd": "add", "iadd": "add", "subtract": "sub"}

# Functions that cut a tensor into parts along an axis, and the names of their argument that says into which.
CUTS = words(
    "chunk split tensor_split unsafe_chunk unsafe_split split_with_sizes unsafe_split_with_sizes unbind "
    "hsplit dsplit vsplit"
)
SECTIONS = words("chunks split_size_or_sections split_size split_sizes indices_or_sections sections indices")

# Functions that put tensors together, and the axis along which those do it that take no `dim`.
JOINS = words("cat concat concatenate stack hstack vstack dstack column_stack where")
JOIN_AXES = {"hstack": 1, "dstack": 2, "column_stack": 1}

# Functions that return the same numbers with other axes, and those that make one axis of several.
VIEWS = words(
    "view reshape unflatten flatten permute transpose swapaxes swapdims movedim moveaxis t squeeze unsqueeze "
    "view_as reshape_as rearrange"
)
MERGING_VIEWS = words("view reshape flatten view_as reshape_as rearrange view_as_complex")

# Functions after which the features are where they were, and those among them that return the same numbers.
KEEP_FEATURES = words(
    "contiguous clone float half double bfloat16 to type type_as cuda cpu detach dropout requires_grad_ "
    "expand data expand_as neg masked_fill masked_fill_ div true_divide dropout1d dropout2d alpha_dropout "
    "feature_dropout roll pad flip negative nan_to_num repeat repeat_interleave sub sub_ rsub cast "
    "checkpoint_name div_ neg_ as_tensor constrain requires_grad interpolate pin_memory refine_names "
    "rename"
)
KEEP_NUMBERS = words(
    "contiguous clone float half double bfloat16 to type type_as cuda cpu detach dropout data checkpoint_name"
)

# Products of matrices; those that may multiply an input with a weight; those that cut a fused weight themselves.
PRODUCTS = words(
    "matmul mm bmm einsum baddbmm addmm addbmm mv dot inner outer tensordot scaled_dot_product_attention "
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bilinear chain_matmul "
    "multi_dot cdist vdot kron cross lstm gru lstm_cell gru_cell rnn_tanh rnn_relu rnn_tanh_cell "
    "rnn_relu_cell multi_head_attention_forward cosine_similarity cov ger flex_attention"
)
PRODUCTS_WITH_WEIGHT = words(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul mm bmm einsum addmm baddbmm "
    "tensordot inner mv"
)
PRODUCTS_WITH_FUSED_WEIGHT = words(
    "lstm gru lstm_cell gru_cell rnn_tanh rnn_relu rnn_tanh_cell rnn_relu_cell multi_head_attention_forward"
)

# Functions over the places along some axes; those that keep the axis, and those that return values and indices.
REDUCTIONS = words(
    "mean sum nanmean nansum prod std var amax amin max min median nanmedian mode kthvalue cummax cummin sort topk "
    "msort norm vector_norm logsumexp"
)
KEEP_AXIS = words("cummax cummin sort topk msort")
RETURN_INDICES = words("max min median nanmedian mode kthvalue cummax cummin sort topk")

# Functions that take numbers from anywhere in the memory of a tensor.
TAKES_PLACES = words("as_strided")

# Functions that only ask how large a tensor is.
ASK_SIZES = words("size dim numel is_floating_point stride element_size nelement ndimension item")

# Functions of each number by itself, besides those of torch.nn.functional.
ELEMENTWISE = words(
    "relu relu_ sigmoid tanh exp log sqrt rsqrt abs pow square sin cos clamp clip clamp_min clamp_max "
    "sign erf softmax log_softmax reciprocal expm1 log1p softplus logsigmoid logit hardtanh maximum "
    "minimum fmod masked_scatter cumsum cumprod index_fill scatter index_put atan sinh cosh tan asin acos "
    "round floor ceil trunc"
)


def is_elementwise(name: str) -> bool:
    """Return whether a function counts as acting on each number by itself.

    It does if it is in `ELEMENTWISE` or has a name of torch.nn.functional, which has products and other functions too.
    Callers treat products, views and cuts before they ask.
    """
    return name in ELEMENTWISE or hasattr(nn.functional, name)
