"""Writes a GGUF file in other forms, by llama.cpp's own quantiser.

    gguf_forms.py MODEL.gguf FOLDER FORM...       of f32, f16, q4_0, q4_1

The embedding, which is the head as well in the models measured here, stays as wide as it is in the
source for the 4-bit forms, so that the same bytes are read for it.
"""

import ctypes
import os
import sys
from pathlib import Path

import llama_cpp

FORMS = {
    "f32": llama_cpp.LLAMA_FTYPE_ALL_F32,
    "f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
}


@llama_cpp.llama_log_callback
def silent(_level, _text, _data):
    pass


def convert(source, target, form):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMS[form]
    params.allow_requantize = True
    if form.startswith("q4"):
        params.token_embedding_type = llama_cpp.GGML_TYPE_Q8_0
        params.output_tensor_type = llama_cpp.GGML_TYPE_Q8_0
    partial = target.with_suffix(".partial")
    status = llama_cpp.llama_model_quantize(
        os.fsencode(source), os.fsencode(partial), params
    )
    if status != 0:
        raise SystemExit(f"{source} could not be written as {form}: {status}")
    partial.rename(target)


def main():
    source, folder, *forms = sys.argv[1:]
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    for form in forms:
        target = Path(folder) / f"{form}.gguf"
        if not target.exists():
            print(f"writing {target}", file=sys.stderr)
            convert(source, target, form)


if __name__ == "__main__":
    main()
