//! Bad GGUF files: one line that says what and where, no panic, no large allocation, nothing left.

mod import_support;

use std::fs;

use bytes::Bytes;
use halfhitch::import::gguf::Gguf;
use halfhitch::import::{ImportOptions, import_gguf};
use import_support::*;
use proptest::prelude::*;

fn raw_array(element: u32, len: u64, rest: &[u8]) -> V {
    let mut bytes = element.to_le_bytes().to_vec();
    bytes.extend(len.to_le_bytes());
    bytes.extend(rest);
    V::Raw(9, bytes)
}

#[test]
fn bad_files_are_refused_by_name() {
    let cases: &[Bad<'_>] = &[
        ("magic", |f| f.magic = *b"GGML", &["not a GGUF file"]),
        ("version 1", |f| f.version = 1, &["version 1"]),
        ("version 4", |f| f.version = 4, &["version 4"]),
        (
            "big-endian",
            |f| f.version = 3u32.swap_bytes(),
            &["big-endian"],
        ),
        ("keys", |f| f.key_count = Some(u64::MAX), &["metadata keys"]),
        (
            "one key too many",
            |f| f.key_count = Some(f.keys.len() as u64 + 1),
            &["claims"],
        ),
        ("tensors", |f| f.tensor_count = Some(1 << 40), &["tensors"]),
        (
            "string length",
            |f| {
                f.set("x", V::Raw(8, (1u64 << 63).to_le_bytes().to_vec()));
            },
            &["key `x`", "claims"],
        ),
        (
            "key length",
            |f| {
                f.keys.push(("k".repeat(70_000), V::U32(1)));
            },
            &["metadata key"],
        ),
        (
            "not UTF-8",
            |f| {
                f.set("x", V::Raw(8, [&1u64.to_le_bytes()[..], &[0xff]].concat()));
            },
            &["key `x`", "UTF-8"],
        ),
        (
            "array length",
            |f| {
                f.set("x", raw_array(4, 1 << 62, &[]));
            },
            &["key `x`", "array claims"],
        ),
        (
            "array of arrays",
            |f| {
                f.set("x", raw_array(9, 1, &[0; 12]));
            },
            &["key `x`", "array of arrays"],
        ),
        (
            "element type",
            |f| {
                f.set("x", raw_array(77, 1, &[0; 8]));
            },
            &["key `x`", "value type 77"],
        ),
        (
            "value type",
            |f| {
                f.set("x", V::Raw(13, vec![0; 8]));
            },
            &["key `x`", "value type 13"],
        ),
        (
            "boolean",
            |f| {
                f.set("x", V::Raw(7, vec![2]));
            },
            &["key `x`", "boolean"],
        ),
        (
            "key twice",
            |f| {
                let k = f.keys[0].clone();
                f.keys.push(k);
            },
            &["general.architecture", "twice"],
        ),
        (
            "alignment 0",
            |f| {
                f.set("general.alignment", V::U32(0));
            },
            &["general.alignment"],
        ),
        (
            "alignment 24",
            |f| {
                f.set("general.alignment", V::U32(24));
            },
            &["general.alignment"],
        ),
        (
            "alignment 2^31",
            |f| {
                f.set("general.alignment", V::U32(1 << 31));
            },
            &["general.alignment"],
        ),
        (
            "alignment a string",
            |f| {
                f.set("general.alignment", "32".into());
            },
            &["general.alignment", "a string"],
        ),
        (
            "no dimensions",
            |f| f.tensors[0].dims.clear(),
            &["token_embd.weight", "0 dimensions"],
        ),
        (
            "five dimensions",
            |f| f.tensors[0].dims = vec![1; 5],
            &["token_embd.weight", "5 dimensions"],
        ),
        (
            "many dimensions",
            |f| f.tensors[0].dims = vec![1; 9000],
            &["token_embd.weight", "9000 dimensions"],
        ),
        (
            "an extent of 0",
            |f| f.tensors[0].dims[1] = 0,
            &["token_embd.weight", "holds nothing"],
        ),
        (
            "extents overflow",
            |f| f.tensors[0].dims = vec![1 << 40, 1 << 40],
            &["token_embd.weight", "too large"],
        ),
        (
            "bytes overflow",
            |f| {
                let t = f.find("output_norm.weight");
                t.dims = vec![u64::MAX / 2];
            },
            &["output_norm.weight", "too large"],
        ),
        (
            "rows split blocks",
            |f| f.tensors[0].dims[0] = 63,
            &["token_embd.weight", "blocks of 32"],
        ),
        (
            "larger than the file",
            |f| f.tensors[0].dims[1] = 1 << 30,
            &["token_embd.weight", "outside the file"],
        ),
        (
            "offset wraps",
            |f| f.tensors[0].offset = Some(u64::MAX - 31),
            &["token_embd.weight", "outside the file"],
        ),
        (
            "offset outside",
            |f| f.tensors[0].offset = Some(1 << 40),
            &["token_embd.weight", "outside the file"],
        ),
        (
            "offset unaligned",
            |f| f.tensors[1].offset = Some(8),
            &["output_norm.weight", "alignment"],
        ),
        (
            "overlap",
            |f| f.tensors[1].offset = Some(0),
            &["token_embd.weight", "output_norm.weight", "overlap"],
        ),
        (
            "tensor twice",
            |f| {
                let t = f.tensors[2].clone();
                f.tensors.push(t);
            },
            &["blk.0.attn_norm.weight", "twice"],
        ),
        (
            "unknown type",
            |f| f.tensors[0].kind = 1000,
            &["token_embd.weight", "tensor type 1000"],
        ),
        (
            "K-quant",
            |f| f.tensors[0].kind = ggml::Q4_K,
            &["token_embd.weight", "Q4_K", "without loss"],
        ),
        (
            "IQ",
            |f| f.tensors[0].kind = 20,
            &["token_embd.weight", "IQ4_NL"],
        ),
    ];
    refuse_all(cases);
}

#[test]
fn the_file_the_table_changes_is_good() {
    for version in [2, 3] {
        let mut file = with_tokenizer();
        file.version = version;
        let dir = tempfile::tempdir().unwrap();
        let (gguf, out) = (file.write(dir.path()), dir.path().join("out"));
        quietly(|c| import_gguf(&gguf, &out, ImportOptions::default(), c)).unwrap();
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = with_tokenizer().bytes();
    refusal(&[]);
    for len in (0..bytes.len()).filter(|&n| n < 64 || n % 211 == 0 || n + 8 > bytes.len()) {
        Gguf::parse(Bytes::copy_from_slice(&bytes[..len])).unwrap_err();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is changed, importing ends in an error or in a folder that loads: never in a panic.
    #[test]
    fn changed_bytes_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let good = with_tokenizer();
        let mut bytes = good.bytes();
        // Most of the file is tensor data; what is read with care stands before it.
        let header = bytes.len() - good.tensors.iter().map(|t| t.data.len()).sum::<usize>();
        for (at, value) in &changes {
            bytes[at.index(header)] = *value;
        }
        let dir = tempfile::tempdir().unwrap();
        let gguf = dir.path().join("m.gguf");
        fs::write(&gguf, &bytes).unwrap();
        let out = dir.path().join("out");
        match quietly(|c| import_gguf(&gguf, &out, ImportOptions::default(), c)) {
            Ok(_) => prop_assert!(halfhitch::checkpoint::Checkpoint::open(&out).is_ok()),
            Err(e) => {
                prop_assert!(!out.exists());
                prop_assert_eq!(e.to_string().lines().count(), 1);
            }
        }
    }
}
