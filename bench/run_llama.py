"""Measures llama.cpp on a GGUF file; see common.py."""

import ctypes

import llama_cpp
import numpy
from common import PROMPT, arguments, measure


@llama_cpp.llama_log_callback
def silent(_level, _text, _data):
    pass


class Llama:
    """llama.cpp as its own benchmark sets it up: defaults, and a batch that holds the whole prompt."""

    def __init__(self, args):
        llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(args.model.encode(), params)
        if not self.model:
            raise SystemExit(f"{args.model} could not be loaded")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = max(args.prefill, PROMPT + args.decode, 256) + 64
        context.n_batch = context.n_ubatch = 512
        context.n_threads = context.n_threads_batch = args.threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.context:
            raise SystemExit("no context")
        self.memory = llama_cpp.llama_get_memory(self.context)
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def prefill(self, ids):
        llama_cpp.llama_memory_clear(self.memory, False)
        for at in range(0, len(ids), 512):
            token = self.run(ids[at : at + 512])
        return token

    def step(self, token):
        return self.run([token])

    def run(self, ids):
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        batch = llama_cpp.llama_batch_get_one(tokens, len(ids))
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())


if __name__ == "__main__":
    arguments = arguments()
    measure(arguments, lambda: Llama(arguments))
