"""The training loop of fixed features, compiled: blocks one after another, with no Python between them."""

from torchssvm.compiled.chain import CompiledChain

__all__ = ["CompiledChain"]
