"""Measures MLX on a checkpoint folder, on the processor; see common.py. Its processor backend takes no
number of threads. --dtype float32 widens scales, and with them activations."""

from pathlib import Path

import mlx.core as mx
from common import arguments, measure
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model


class Mlx:
    def __init__(self, args):
        mx.set_default_device(mx.cpu)
        self.model, config = load_model(Path(args.model))
        if args.dtype:
            self.model.set_dtype(getattr(mx, args.dtype))
        mx.eval(self.model.parameters())
        self.vocabulary = config["vocab_size"]

    def prefill(self, ids):
        self.cache = make_prompt_cache(self.model)
        return self.run(ids)

    def step(self, token):
        return self.run([token])

    def run(self, ids):
        logits = self.model(mx.array([ids]), cache=self.cache)
        return int(mx.argmax(logits[0, -1]).item())


if __name__ == "__main__":
    arguments = arguments()
    measure(arguments, lambda: Mlx(arguments))
