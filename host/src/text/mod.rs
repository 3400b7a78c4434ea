//! Tokenizer, streaming decoder, chat template.
