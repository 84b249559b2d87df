"""The decode step of the Llama family, written out without the per-call work of the model classes.

Formulas: RMSNorm (Zhang & Sennrich 2019), rotary positions in the half-split layout (Su et al. 2021), grouped-query
attention (Ainslie et al. 2023), SwiGLU (Shazeer 2020), as the Llama and Qwen2 classes of transformers 5 combine them.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from lossbench.sampling.prompts import read_prompts

# Where weights exceed the caches, CPU matrix libraries compute weight @ rows^T up to twice as fast as rows @ weight^T
# from four rows on; for smaller weights a transposed copy, made once per batch of prompts, is fastest.
_WIDE_WEIGHT_ELEMENTS = 1 << 17
_WIDE_WEIGHT_ROWS = 4
_FIRST_CAPACITY_TOKENS = 64
_KNOWN_MODULES = (
    "transformers.activations",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
)
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


def computes_plain_llama(model: Any) -> bool:
    """Whether `LlamaDecoder` computes what this model's forward computes (with dropout off).

    True for the unmodified Llama and Qwen2 classes of transformers (SmolLM2 is a Llama) with full attention, SiLU,
    rotary tables that do not depend on the length, one dtype and one device, no hooks, adapters or patched forwards.
    """
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM

    if type(model) not in (LlamaForCausalLM, Qwen2ForCausalLM) or torch.is_autocast_enabled(model.device.type):
        return False
    config = model.config
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    if config.hidden_act != "silu" or set(layer_types) != {"full_attention"}:
        return False
    if (config.rope_parameters or {}).get("rope_type", "default") not in _STATIC_ROPE:
        return False
    parameters = list(model.parameters())
    if any(type(p) is not nn.Parameter for p in parameters) or len({(p.dtype, p.device) for p in parameters}) != 1:
        return False
    return all(_is_untouched(module) for module in model.modules())


def _is_untouched(module: nn.Module) -> bool:
    """Whether a module is of a known class with its own forward and no hooks."""
    kind = type(module)
    known = kind.__module__ in _KNOWN_MODULES or kind in (nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU)
    hooked = module._forward_hooks or module._forward_pre_hooks
    return known and not hooked and _is_own_forward(module.forward, kind)


def _is_own_forward(forward: Any, kind: type[nn.Module]) -> bool:
    """Whether a forward is its class's, or TRL's around it, which calls it unless asked for a fused head.

    TRL 1.16 (`add_fused_lm_head`) puts the latter on every policy and names the class's forward as the wrapped one
    whatever it wraps, so only the function it closes over tells.
    """
    function = getattr(forward, "__func__", forward)
    if function is kind.forward:
        return True
    if getattr(function, "__globals__", {}).get("__name__") != "trl.trainer.utils":
        return False
    inner = inspect.getclosurevars(function).nonlocals.get("original_forward")
    return inner is not None and _is_own_forward(inner, kind)


class _Projection:
    """Linear maps of one input, ready for few rows: x W^T + b, in the order of operands that is fast for the size."""

    def __init__(self, *linear: Any) -> None:
        weight = self._weight = _joined([module.weight for module in linear])
        self._bias = None if linear[0].bias is None else _joined([module.bias for module in linear])
        on_cpu = weight.device.type == "cpu"
        self._wide = on_cpu and weight.numel() >= _WIDE_WEIGHT_ELEMENTS
        self._weight_t = weight.t().contiguous() if on_cpu and not self._wide else weight.t()

    def __call__(self, rows_BD: Tensor) -> Tensor:
        if self._wide and len(rows_BD) >= _WIDE_WEIGHT_ROWS:
            product_BE = torch.mm(self._weight, rows_BD.t()).t()
            return product_BE if self._bias is None else product_BE.add_(self._bias)
        if self._bias is None:
            return torch.mm(rows_BD, self._weight_t)
        return torch.addmm(self._bias, rows_BD, self._weight_t)

    def added_to(self, residual_BD: Tensor, rows_BD: Tensor) -> Tensor:
        """Residual + projection of the rows, in one pass if the layer has no bias."""
        if self._bias is not None:
            return residual_BD + self(rows_BD)
        if self._wide and len(rows_BD) >= _WIDE_WEIGHT_ROWS:
            return torch.addmm(residual_BD.t(), self._weight, rows_BD.t()).t()
        return torch.addmm(residual_BD, rows_BD, self._weight_t)


class _Norm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight = x / sqrt(|x|^2 + D eps) * (sqrt(D) weight), in float32."""

    def __init__(self, module: Any) -> None:
        weight = module.weight.detach()
        size = weight.shape[0]
        self._weight = weight.float() * size**0.5
        self._floor = torch.tensor((size * module.variance_epsilon) ** 0.5, dtype=torch.float32, device=weight.device)

    def __call__(self, rows_BD: Tensor) -> Tensor:
        length_B1 = torch.linalg.vector_norm(rows_BD, 2, -1, True, dtype=torch.float32).hypot_(self._floor)
        return torch.div(rows_BD, length_B1).mul_(self._weight).to(rows_BD.dtype)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.detach() for part in parts]) if len(parts) > 1 else parts[0].detach()


class _Layer:
    """The weights of one layer of the model, as they are now."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norm_in, self.norm_mid = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.qkv = _Projection(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = _Projection(attention.o_proj)
        self.gate, self.up, self.down = (_Projection(part) for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))


class LlamaDecoder:
    """Decoding with the weights as they are when `prefill` is called, and a cache in which rows that stay do not move.

    The cache is one tensor (layers, rows, kv heads, 2, positions, head size); the last rows overwrite those that leave.
    `model` is unwrapped, and `computes_plain_llama` holds for it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def prefill(self, prompt_ids_UP: Tensor, prompt_mask_UP: Tensor, rows_B: Tensor, capacity: int) -> Tensor:
        """See `ModelDecoder`."""
        model = self._model
        self._embedding = model.model.embed_tokens.weight.detach()
        self._layers = [_Layer(layer) for layer in model.model.layers]
        self._norm_out, self._head = _Norm(model.model.norm), _Projection(model.lm_head)
        self._rotation = self._rotary_table(capacity)
        logits_UV, cache = read_prompts(model, prompt_ids_UP, prompt_mask_UP)
        self._width, self._capacity = prompt_ids_UP.shape[1], capacity
        self._positions_B = prompt_mask_UP.sum(-1)[rows_B]
        self._fill_cache(cache, prompt_mask_UP, rows_B)
        return logits_UV[rows_B]

    def _rotary_table(self, capacity: int) -> Tensor:
        """Cosines, and sines with the sign of the half-rotation folded in: (capacity, 2, 2, head size / 2)."""
        positions_1T = torch.arange(capacity, device=self._embedding.device)[None]
        cos_1TD, sin_1TD = self._model.model.rotary_emb(self._embedding[:1], positions_1T)
        cos_T2E, sin_T2E = (table[0].view(capacity, 2, -1) for table in (cos_1TD, sin_1TD))
        signs = torch.tensor([[-1.0], [1.0]], dtype=sin_T2E.dtype, device=sin_T2E.device)
        return torch.stack((cos_T2E, sin_T2E * signs), dim=1)

    def _fill_cache(self, cache: Any, prompt_mask_UP: Tensor, rows_B: Tensor) -> None:
        """Copy the prompts' keys and values into the batch's cache, with zeros and a mask on the padding."""
        keys = cache.layers[0].keys
        self._kv_heads, self._head_size = keys.shape[1], keys.shape[3]
        self._query_heads = self._model.config.num_attention_heads
        self._scale = self._head_size**-0.5
        self._swap = torch.tensor([1, 0], device=keys.device)
        room = min(self._capacity, self._width + _FIRST_CAPACITY_TOKENS)
        self._cache = keys.new_empty(len(self._layers), len(rows_B), self._kv_heads, 2, room, self._head_size)
        padding_UP = prompt_mask_UP == 0
        for index, layer in enumerate(cache.layers):
            pair = torch.stack((layer.keys, layer.values), dim=2).masked_fill_(padding_UP[:, None, None, :, None], 0.0)
            self._cache[index, :, :, :, : self._width] = pair[rows_B]
        self._padded = bool(padding_UP.any())
        self._penalty_BT = keys.new_zeros(len(rows_B), self._capacity if self._padded else 1)
        if self._padded:
            self._penalty_BT[:, : self._width].masked_fill_(padding_UP[rows_B], -torch.inf)
        self._refresh_views()

    def _refresh_views(self) -> None:
        """Per layer, keys and values as batches of (rows x kv heads); and the padding's penalty in the same order."""
        rows = self._cache.shape[1]
        self._stores = list(self._cache.unbind(0))
        flat = [store.view(rows * self._kv_heads, 2, -1, self._head_size) for store in self._stores]
        self._keys, self._values = [pair[:, 0] for pair in flat], [pair[:, 1] for pair in flat]
        penalty = self._penalty_BT[:, None, None].expand(-1, self._kv_heads, 1, -1)
        self._penalty = penalty.reshape(rows * self._kv_heads, 1, -1)

    def step(self, tokens_B: Tensor) -> Tensor:
        """See `ModelDecoder`."""
        if self._width == self._cache.shape[4]:  # twice the room for generated tokens
            self._grow(min(self._capacity, 2 * self._width + _FIRST_CAPACITY_TOKENS))
        hidden_BD = self._embedding.index_select(0, tokens_B)
        rotation = self._rotation.index_select(0, self._positions_B)
        cos, sin = rotation[:, None, 0], rotation[:, None, 1]
        for index, layer in enumerate(self._layers):
            mixed_BD = self._attend(index, layer.qkv(layer.norm_in(hidden_BD)), cos, sin)
            hidden_BD = layer.out.added_to(hidden_BD, mixed_BD)
            normed_BD = layer.norm_mid(hidden_BD)
            gated_BF = nn.functional.silu(layer.gate(normed_BD), inplace=True).mul_(layer.up(normed_BD))
            hidden_BD = layer.down.added_to(hidden_BD, gated_BF)
        self._width += 1
        self._positions_B = self._positions_B + 1
        return self._head(self._norm_out(hidden_BD))

    def _attend(self, index: int, qkv_BE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Store the newest position's key and value and attend over its row: (B, query heads * head size)."""
        rows, kv_heads, head_size = len(qkv_BE), self._kv_heads, self._head_size
        heads_BHD = qkv_BE.reshape(rows, -1, head_size)
        turned = heads_BHD[:, : self._query_heads + kv_heads].view(rows, -1, 2, head_size // 2)
        swapped = turned.index_select(2, self._swap)
        turned.mul_(cos).addcmul_(swapped, sin)
        new_pair = heads_BHD[:, self._query_heads :].view(rows, 2, kv_heads, head_size).transpose(1, 2)
        self._stores[index].select(3, self._width).copy_(new_pair)
        query = heads_BHD[:, : self._query_heads].reshape(rows * kv_heads, -1, head_size)
        length = self._width + 1
        keys, values = self._keys[index].narrow(1, 0, length), self._values[index].narrow(1, 0, length)
        penalty = self._penalty.narrow(2, 0, length) if self._padded else self._penalty
        scores = torch.baddbmm(penalty, query, keys.mT, beta=int(self._padded), alpha=self._scale)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
        return torch.bmm(weights, values).view(rows, -1)

    def _grow(self, room: int) -> None:
        layers, rows, kv_heads, _, _, head_size = self._cache.shape
        larger = self._cache.new_empty(layers, rows, kv_heads, 2, room, head_size)
        larger[..., : self._width, :] = self._cache
        self._cache = larger
        self._refresh_views()

    def keep(self, rows_N: Tensor) -> None:
        """See `ModelDecoder`; only rows whose place changes are copied."""
        places_N = torch.arange(len(rows_N), device=rows_N.device)
        moved = (rows_N != places_N).nonzero().squeeze(1)
        used = self._cache[..., : self._width, :]
        used[:, moved] = used[:, rows_N[moved]]
        self._cache = self._cache[:, : len(rows_N)]
        self._positions_B = self._positions_B[rows_N]
        self._penalty_BT = self._penalty_BT[rows_N]
        self._refresh_views()
