//! The folder's parsers on bytes, and what holds of whatever they accept.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::model::limits;
use halfhitch_seam::{
    ComputeBackend, DType, PlanRequest, Tensor, Weight, WeightForm, WeightId, WeightInfo, Weights,
    negotiate,
};
use serde_json::{Map, Value, json};

use super::quantization::Quantization;
use super::{assemble, config, finite, json, safetensors, shards, stop};
use crate::fuzzing::{fine, uncancelled};

/// A safetensors file: every tensor is the bytes that its shape asks for.
pub fn checkpoint_header(bytes: &[u8]) {
    let file = Bytes::copy_from_slice(bytes);
    let Some(tensors) = fine(safetensors::split(&file, &Arc::from("x.safetensors"))) else {
        return;
    };
    for raw in tensors.values() {
        let elements: usize = raw.shape.iter().product();
        assert_eq!(elements * raw.dtype.bitsize(), raw.bytes.len() * 8);
        if let Some(tensor) = fine(raw.tensor()) {
            assert_eq!(tensor.elements(), elements);
        }
    }
}

/// An index: every shard lies right in the folder.
pub fn checkpoint_index(bytes: &[u8]) {
    let Some(index) = fine(json::object(bytes)) else {
        return;
    };
    let folder = Path::new("/folder");
    for shard in fine(shards::weight_map(&index))
        .iter()
        .flat_map(BTreeMap::values)
    {
        assert_eq!(folder.join(shard).parent(), Some(folder), "{shard:?}");
        assert!(shard.ends_with(".safetensors"), "{shard:?}");
    }
}

/// A configuration: what is accepted is a valid model of bounded size, with a plan or a reason why
/// there is none.
pub fn config(bytes: &[u8]) {
    let Some(map) = fine(json::object(bytes)) else {
        return;
    };
    fine(Quantization::parse(&map));
    let Some(model) = fine(config::parse(&map)) else {
        return;
    };
    model.spec.validate().expect("it was validated");
    let vocabulary = model.spec.vocab_size;
    if let Some(stop) = fine(stop::read(&map, Some(&map), vocabulary, &mut Vec::new())) {
        assert!(stop.eos.iter().all(|&id| (id as usize) < vocabulary));
    }
    let weights = model.spec.expected_weights();
    assert!(weights.len() < 20 * limits::LAYERS);
    let dense = |shape| WeightInfo {
        shape,
        form: WeightForm::Dense(DType::F16),
    };
    let manifest = weights
        .into_iter()
        .map(|w| (w.id, dense(w.shape)))
        .collect();
    let backend = ReferenceCpu::new();
    let device = backend.devices().expect("there is a CPU").remove(0);
    let device = backend.capabilities(&device.id).expect("of that CPU");
    fine(negotiate(
        &model.spec,
        &manifest,
        &device,
        &PlanRequest::default(),
    ));
}

/// A quantised matrix: packed words, scales and biases whose shapes and types come from the first bytes, and
/// a `quantization` block that is the rest. What is accepted has the values that its bits say.
pub fn quantization(bytes: &[u8]) {
    let Some((head, block)) = bytes.split_first_chunk::<12>() else {
        return;
    };
    let block: Value = match block {
        [] => json!({"bits": head[0], "group_size": u32::from(head[1])}),
        text => match serde_json::from_slice(text) {
            Ok(block) => block,
            Err(_) => return,
        },
    };
    let config = Map::from_iter([("quantization".to_owned(), block)]);
    let Some(block) = fine(Quantization::parse(&config)) else {
        return;
    };
    let dtype = |n: u8| [DType::F16, DType::BF16, DType::F32, DType::U32][usize::from(n) % 4];
    // Extents that fit together, and then some that do not.
    let rows = usize::from(head[2] % 5);
    let columns = usize::from(head[3]) * 8;
    let off = |n: u8, by: u8| (n as usize).saturating_add_signed(isize::from(by as i8 / 32));
    let bits = usize::from(head[4] % 9);
    let group = 32 << (head[5] % 3);
    let tensor = |dtype: DType, shape: [usize; 2], seed: u8| {
        let bytes = shape[0] * shape[1] * dtype.size();
        let bytes: Vec<u8> = (0..bytes)
            .map(|i| (i as u8).wrapping_mul(seed) >> 1)
            .collect();
        Tensor::new(dtype, shape.to_vec(), Bytes::from(bytes))
    };
    let words = tensor(
        dtype(head[6]),
        [off(rows as u8, head[7]), columns / 32 * bits],
        head[8],
    );
    let groups = columns / group;
    let scales = tensor(dtype(head[9]), [rows, off(groups as u8, head[10])], 3);
    let biases = tensor(dtype(head[9] >> 2), [rows, groups], head[11]);
    let (Some(words), Some(scales), Some(biases)) = (fine(words), fine(scales), fine(biases))
    else {
        return;
    };
    let made = assemble::affine(
        &block,
        "model.layers.0.mlp.up_proj",
        [rows, columns],
        words,
        scales,
        biases,
    );
    if let Some(weight) = fine(made) {
        check_values(&weight);
    }
}

/// Compares what a quantised weight stands for with its bits, taken one by one.
fn check_values(weight: &Weight) {
    let names = BTreeMap::new();
    let weights = Weights::new([(WeightId::Embedding, weight.clone())]);
    fine(uncancelled(|control| {
        finite::check(&weights, &names, control.cancel)
    }));
    let Weight::Affine(affine) = weight else {
        panic!("a quantised weight is affine");
    };
    let [rows, columns] = affine.shape();
    let (scheme, values) = (affine.scheme(), affine.dequantize());
    assert_eq!(values.len(), rows * columns);
    let words = affine.words().to_words();
    let (scales, biases) = (affine.scales().to_f32(), affine.biases().to_f32());
    let (bits, group) = (scheme.bits.get(), scheme.group_size.get());
    for (i, value) in values.iter().enumerate() {
        let (row, column) = (i / columns, i % columns);
        let bit = |n: usize| {
            let at = row * scheme.words_per_row(columns) * 32 + column * bits + n;
            (words[at / 32] >> (at % 32)) & 1
        };
        let q: u32 = (0..bits).map(|n| bit(n) << n).sum();
        let of = row * (columns / group) + column / group;
        let want = q as f32 * scales[of] + biases[of];
        assert_eq!(
            want.to_bits(),
            value.to_bits(),
            "row {row}, column {column}"
        );
    }
}
