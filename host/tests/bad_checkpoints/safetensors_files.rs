//! Damaged safetensors files.

use super::*;

#[test]
fn damaged_safetensors() {
    run(&[
        (
            "empty",
            |f| f.write("model.safetensors", ""),
            InvalidModel,
            &["model.safetensors", "0 bytes"],
        ),
        (
            "seven bytes",
            |f| f.write("model.safetensors", "1234567"),
            InvalidModel,
            &["7 bytes"],
        ),
        (
            "cut off in the data",
            |f| {
                let bytes = f.read("model.safetensors");
                f.write("model.safetensors", &bytes[..bytes.len() - 100]);
            },
            InvalidModel,
            &["model.safetensors", "ends at byte", "fetch it again"],
        ),
        (
            "cut off in the header",
            |f| {
                let bytes = f.read("model.safetensors");
                f.write("model.safetensors", &bytes[..200]);
            },
            InvalidModel,
            &["model.safetensors", "has only 192"],
        ),
        (
            "a header of 2^64 - 1",
            |f| f.write("model.safetensors", [0xff; 64]),
            InvalidModel,
            &["header claims 18446744073709551615"],
        ),
        (
            "a header over the limit",
            |f| {
                f.write("model.safetensors", (40u64 << 20).to_le_bytes());
                let file = File::options()
                    .write(true)
                    .open(f.path().join("model.safetensors"))
                    .unwrap();
                file.set_len(64 << 20).unwrap();
            },
            InvalidModel,
            &["header claims 41943040 bytes", "allowed"],
        ),
        (
            "a thousand dimensions",
            |f| {
                let shape = vec!["1"; 1000].join(",");
                let tensor = format!(r#""dtype":"F32","shape":[{shape}],"data_offsets":[0,4]"#);
                f.header(&format!("{{\"a\":{{{tensor}}}}}"), 4);
            },
            InvalidModel,
            &["`a` has 1000 dimensions"],
        ),
        (
            "not JSON",
            |f| f.header("{\"a\": {", 0),
            InvalidModel,
            &["model.safetensors", "header"],
        ),
        (
            "not UTF-8",
            |f| {
                f.write(
                    "model.safetensors",
                    [b"\x05\0\0\0\0\0\0\0{\"\xff\":".as_slice(), &[0; 9]].concat(),
                )
            },
            InvalidModel,
            &["header"],
        ),
        (
            "nested deeply",
            |f| f.header(&format!("{{\"a\": {}", "[".repeat(100_000)), 0),
            InvalidModel,
            &["header"],
        ),
        (
            "nested metadata",
            |f| f.header(&format!("{{\"__metadata__\": {}", "[".repeat(100_000)), 0),
            InvalidModel,
            &["header"],
        ),
        (
            "a list",
            |f| f.header("[]", 0),
            InvalidModel,
            &["header", "object of tensors"],
        ),
        (
            "no tensors",
            |f| f.header("{}", 0),
            InvalidModel,
            &["no tensors"],
        ),
        (
            "text behind",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}} x",
                    4,
                )
            },
            InvalidModel,
            &["header"],
        ),
        (
            "element type",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F\\n3\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                    4,
                )
            },
            InvalidModel,
            &["tensor `a`", "unknown variant"],
        ),
        (
            "twice",
            |f| {
                f.header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4)
            },
            InvalidModel,
            &["tensor `a` stands twice"],
        ),
        (
            "overlap",
            |f| {
                f.header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12)
            },
            InvalidModel,
            &["tensor `b`", "overlaps"],
        ),
        (
            "hole",
            |f| {
                f.header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20)
            },
            InvalidModel,
            &["tensor `b`", "hole"],
        ),
        (
            "bytes of no tensor",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                    12,
                )
            },
            InvalidModel,
            &["last 4 bytes"],
        ),
        (
            "backwards",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
                    8,
                )
            },
            InvalidModel,
            &["tensor `a`", "before its start"],
        ),
        (
            "offsets that wrap",
            |f| {
                f.header("{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,18446744073709551615]}}", 8)
            },
            InvalidModel,
            &["tensor `a`", "ends at byte 18446744073709551615"],
        ),
        (
            "offsets that do not fit",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[-8,8]}}",
                    8,
                )
            },
            InvalidModel,
            &["tensor `a`"],
        ),
        (
            "a sum that wraps",
            |f| {
                let mut header = String::from("{");
                let piece = 1u64 << 60;
                for i in 0..16u64 {
                    let end = if i == 15 { u64::MAX } else { (i + 1) * piece };
                    header += &format!(
                        "\"t{i:02}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{},{end}]}},",
                        end - i * piece,
                        i * piece
                    );
                }
                header.pop();
                header.push('}');
                f.header(&header, 64);
            },
            InvalidModel,
            &["tensor `t00`", "ends at byte"],
        ),
        (
            "shape times type",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[3,5],\"data_offsets\":[0,56]}}",
                    56,
                )
            },
            InvalidModel,
            &["tensor `a`", "F32 [3, 5]", "56 bytes"],
        ),
        (
            "a shape that overflows",
            |f| {
                f.header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0)
            },
            InvalidModel,
            &["tensor `a`", "0 bytes"],
        ),
    ]);
}
