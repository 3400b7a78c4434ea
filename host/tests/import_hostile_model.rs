//! Well-formed GGUF files with a model or tokenizer that is wrong or not supported: one line each.

mod import_support;

use import_support::*;

#[test]
fn bad_models_are_refused_by_name() {
    let cases: &[Bad<'_>] = &[
        (
            "no architecture",
            |f| {
                f.unset("general.architecture");
            },
            &["general.architecture", "missing"],
        ),
        (
            "other architecture",
            |f| {
                f.set("general.architecture", "gemma2".into());
            },
            &["gemma2", "llama", "qwen3"],
        ),
        (
            "split file",
            |f| {
                f.set("split.count", V::U32(3));
            },
            &["split"],
        ),
        (
            "layers missing",
            |f| {
                f.unset("llama.block_count");
            },
            &["llama.block_count", "missing"],
        ),
        (
            "layers too many",
            |f| {
                f.set("llama.block_count", V::U32(u32::MAX));
            },
            &["llama.block_count"],
        ),
        (
            "layers negative",
            |f| {
                f.set("llama.block_count", V::I32(-1));
            },
            &["llama.block_count"],
        ),
        (
            "one layer missing",
            |f| {
                f.set("llama.block_count", V::U32(2));
            },
            &["blk.1.attn_norm.weight", "missing"],
        ),
        (
            "no heads",
            |f| {
                f.set("llama.attention.head_count", V::U32(0));
            },
            &["llama.attention.head_count"],
        ),
        (
            "heads a list",
            |f| {
                f.set("llama.attention.head_count", V::I32s(vec![4]));
            },
            &["llama.attention.head_count", "an array"],
        ),
        (
            "heads do not divide",
            |f| {
                f.set("llama.attention.head_count_kv", V::U32(3));
            },
            &["3 KV heads"],
        ),
        (
            "width does not divide",
            |f| {
                f.set("llama.attention.head_count", V::U32(6));
            },
            &["6 heads"],
        ),
        (
            "odd heads",
            |f| {
                f.set("llama.attention.key_length", V::U32(15));
            },
            &["pairs"],
        ),
        (
            "partial rope",
            |f| {
                f.set("llama.rope.dimension_count", V::U32(8));
            },
            &["llama.rope.dimension_count"],
        ),
        (
            "epsilon",
            |f| {
                f.set("llama.attention.layer_norm_rms_epsilon", V::F32(f32::NAN));
            },
            &["layer_norm_rms_epsilon"],
        ),
        (
            "theta",
            |f| {
                f.set("llama.rope.freq_base", V::F32(-1.0));
            },
            &["llama.rope.freq_base"],
        ),
        (
            "yarn",
            |f| {
                f.set("llama.rope.scaling.type", "yarn".into());
            },
            &["yarn", "linear"],
        ),
        (
            "linear without factor",
            |f| {
                f.set("llama.rope.scaling.type", "linear".into());
            },
            &["llama.rope.scaling.factor"],
        ),
        (
            "odd frequencies",
            |f| {
                f.tensor("rope_freqs.weight", &[8], ggml::F32, vec![0; 32]);
            },
            &["rope_freqs.weight"],
        ),
        (
            "experts",
            |f| {
                f.set("llama.expert_count", V::U32(8));
            },
            &["llama.expert_count"],
        ),
        (
            "sliding window",
            |f| {
                f.set("llama.attention.sliding_window", V::U32(4096));
            },
            &["sliding_window"],
        ),
        (
            "not causal",
            |f| {
                f.set("llama.attention.causal", V::Bool(false));
            },
            &["causal"],
        ),
        (
            "vocabulary",
            |f| {
                f.set("llama.vocab_size", V::U32(41));
            },
            &["llama.vocab_size"],
        ),
        (
            "a tensor missing",
            |f| f.tensors.retain(|t| t.name != "blk.0.ffn_up.weight"),
            &["blk.0.ffn_up.weight", "missing"],
        ),
        (
            "a tensor left",
            |f| {
                f.tensor("blk.0.extra.weight", &[1], ggml::F32, vec![0; 4]);
            },
            &["blk.0.extra.weight", "no place"],
        ),
        (
            "some biases",
            |f| {
                f.tensor("blk.0.attn_q.bias", &[64], ggml::F32, vec![0; 256]);
            },
            &["bias", "missing"],
        ),
        (
            "another shape",
            |f| f.find("blk.0.attn_v.weight").dims.swap(0, 1),
            &["blk.0.attn_v.weight", "shape"],
        ),
        (
            "packed vector",
            |f| {
                let t = f.find("blk.0.attn_norm.weight");
                (t.kind, t.data) = (ggml::Q8_0, vec![0; 68]);
            },
            &["blk.0.attn_norm.weight", "vector"],
        ),
        (
            "token type",
            |f| {
                f.set("tokenizer.ggml.token_type", V::I32s(vec![1; 3]));
            },
            &["token_type", "3 entries"],
        ),
        (
            "too many tokens",
            |f| {
                f.set(
                    "tokenizer.ggml.tokens",
                    V::Strs((0..99).map(|i| i.to_string()).collect()),
                );
            },
            &["tokenizer.ggml.tokens", "99"],
        ),
        (
            "equal tokens",
            |f| {
                f.set("tokenizer.ggml.tokens", V::Strs(vec!["x".into(); VOCAB]));
            },
            &["tokens 0 and 1"],
        ),
        (
            "tokens numbers",
            |f| {
                f.set("tokenizer.ggml.tokens", V::I32s(vec![1; VOCAB]));
            },
            &["tokenizer.ggml.tokens"],
        ),
        (
            "merge of one",
            |f| {
                f.set("tokenizer.ggml.merges", V::Strs(vec!["ab".into()]));
            },
            &["merge 0", "`ab`"],
        ),
        (
            "merge of nothing",
            |f| {
                f.set("tokenizer.ggml.merges", V::Strs(vec!["b a".into()]));
            },
            &["merge 0", "`ba`"],
        ),
        (
            "pre-tokenizer",
            |f| {
                f.set("tokenizer.ggml.pre", "tekken".into());
            },
            &["tokenizer.ggml.pre", "tekken"],
        ),
        (
            "no pre-tokenizer",
            |f| {
                f.unset("tokenizer.ggml.pre");
            },
            &["tokenizer.ggml.pre", "missing"],
        ),
        (
            "tokenizer model",
            |f| {
                f.set("tokenizer.ggml.model", "t5".into());
            },
            &["tokenizer model `t5`"],
        ),
        (
            "bos outside",
            |f| {
                f.set("tokenizer.ggml.bos_token_id", V::U32(40));
            },
            &["bos_token_id", "40 tokens"],
        ),
        (
            "bos not there",
            |f| {
                f.unset("tokenizer.ggml.bos_token_id")
                    .set("tokenizer.ggml.add_bos_token", V::Bool(true));
            },
            &["add_bos_token"],
        ),
    ];
    refuse_all(cases);
}
