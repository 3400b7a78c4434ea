//! Weights between processes: files and places in them, never bytes.
//!
//! What lies in a mapped file stays there: the file's descriptor, which is open for reading only, goes to
//! the other process, which maps it as well, so that both see the same memory. Weights that were made in
//! memory are written once into a file that exists in memory alone, has no name, and is sealed against
//! any change. The system frees it with the last process that has it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use halfhitch_seam::{
    AffineTensor, CancelToken, ErrorCode, ResultExt, SeamError, SeamResult, Tensor, Weight,
    WeightForm, Weights,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::message::{Part, WeightAt};
use crate::checkpoint::mapped::{MappedFile, containing};

/// Most files: as many as a checkpoint may have, and one.
pub const FILES: usize = 4097;

/// Where weights begin in the file in memory: a multiple of this, as backends take them in place.
const ALIGNMENT: usize = 64;

/// Bytes that are written between two looks at the cancel token.
const STEP: usize = 16 << 20;

/// Weights, ready to be passed on.
pub struct Shared {
    /// Every weight's place.
    pub weights: Vec<WeightAt>,
    mapped: Vec<Arc<MappedFile>>,
    memory: Option<OwnedFd>,
}

impl Shared {
    /// Finds the file of each weight; those of none are written into one.
    ///
    /// # Errors
    /// `OutOfMemory` or `Io` where that cannot be made; `Unsupported` for a form that has no place here;
    /// `Cancelled`.
    pub fn new(weights: &Weights, cancel: &CancelToken) -> SeamResult<Self> {
        let mut files = Files::default();
        let weights: SeamResult<Vec<WeightAt>> = weights
            .iter()
            .map(|(id, weight)| {
                let tensors = match weight {
                    Weight::Dense(t) => vec![t],
                    Weight::Affine(a) => vec![a.words(), a.scales(), a.biases()],
                    other => {
                        return Err(SeamError::unsupported(format!(
                            "a weight stored as {} cannot be passed to another process",
                            other.form()
                        )));
                    }
                };
                let parts = tensors.into_iter().map(|t| files.place(t, cancel));
                Ok(WeightAt {
                    id,
                    form: weight.form(),
                    parts: parts.collect::<SeamResult<_>>()?,
                })
            })
            .collect();
        let mut weights = weights?;
        // The file in memory comes last, wherever its first weight stood.
        let last = files.mapped.len();
        for part in weights.iter_mut().flat_map(|w| &mut w.parts) {
            part.file = part.file.min(last);
        }
        let memory = files.memory.map(|memory| memory.seal()).transpose()?;
        Ok(Self {
            weights,
            mapped: files.mapped,
            memory,
        })
    }

    /// The files.
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        let mapped = self.mapped.iter().map(|f| f.file().as_fd());
        mapped.chain(self.memory.iter().map(AsFd::as_fd)).collect()
    }
}

/// Where the file in memory stands while it is not known how many others there are.
const MEMORY: usize = usize::MAX;

#[derive(Default)]
struct Files {
    mapped: Vec<Arc<MappedFile>>,
    memory: Option<Memory>,
}

impl Files {
    fn place(&mut self, tensor: &Tensor, cancel: &CancelToken) -> SeamResult<Part> {
        let bytes = tensor.bytes();
        let (file, offset) = match containing(bytes) {
            Some((file, offset)) => {
                let known = self.mapped.iter().position(|f| Arc::ptr_eq(f, &file));
                let at = known.unwrap_or_else(|| {
                    self.mapped.push(file);
                    self.mapped.len() - 1
                });
                (at, offset)
            }
            None => {
                let memory = match &mut self.memory {
                    Some(memory) => memory,
                    none => none.insert(Memory::new()?),
                };
                (MEMORY, memory.append(bytes, cancel)?)
            }
        };
        Ok(Part {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            file,
            offset,
            length: bytes.len(),
        })
    }
}

/// A file without a name that lives in memory.
struct Memory {
    file: File,
    length: usize,
}

impl Memory {
    fn new() -> SeamResult<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let made = memfd_create("halfhitch-weights", flags).map_err(|e| io(&e.into()))?;
        Ok(Self {
            file: made.into(),
            length: 0,
        })
    }

    /// Writes bytes at an aligned place, and says where that is.
    fn append(&mut self, bytes: &[u8], cancel: &CancelToken) -> SeamResult<usize> {
        let offset = self.length.next_multiple_of(ALIGNMENT);
        let padding = [0; ALIGNMENT];
        let mut write = |bytes: &[u8]| self.file.write_all(bytes).map_err(|e| io(&e));
        write(&padding[..offset - self.length])?;
        for part in bytes.chunks(STEP) {
            cancel.check()?;
            write(part)?;
        }
        self.length = offset + bytes.len();
        Ok(offset)
    }

    /// Nobody changes it from here on. Opened again for reading only: Linux before 6.7 maps no file that
    /// is sealed and open for writing.
    fn seal(self) -> SeamResult<OwnedFd> {
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&self.file, seals).map_err(|e| io(&e.into()))?;
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(File::open(path).map_err(|e| io(&e))?.into())
    }
}

fn io(error: &std::io::Error) -> SeamError {
    let full = matches!(
        error.kind(),
        std::io::ErrorKind::OutOfMemory | std::io::ErrorKind::StorageFull
    );
    let code = if full {
        ErrorCode::OutOfMemory
    } else {
        ErrorCode::Io
    };
    SeamError::new(code, format!("sharing weights in memory: {error}"))
}

/// Files of weights, as they were received.
#[derive(Default)]
pub struct Received(Vec<Arc<MappedFile>>);

impl Received {
    /// Maps files.
    ///
    /// # Errors
    /// `Io`; `Incompatible` for more than [`FILES`] in all.
    pub fn add(&mut self, files: Vec<OwnedFd>) -> SeamResult<()> {
        if self.0.len() + files.len() > FILES {
            return Err(incompatible(format!("more than {FILES} files of weights")));
        }
        for file in files {
            self.0.push(MappedFile::new(file.into())?);
        }
        Ok(())
    }

    /// The weights in them.
    ///
    /// # Errors
    /// `Incompatible` for a place that is in no file; `InvalidModel` for shapes that contradict
    /// themselves.
    pub fn weights(&self, weights: Vec<WeightAt>) -> SeamResult<Weights> {
        weights
            .into_iter()
            .map(|at| {
                let weight = self.weight(&at).in_context(|| format!("`{}`", at.id))?;
                Ok((at.id, weight))
            })
            .collect()
    }

    /// Gives back the pages of all files that this process has in memory.
    pub fn release_pages(&self) {
        self.0.iter().for_each(|file| file.release_pages());
    }

    fn weight(&self, at: &WeightAt) -> SeamResult<Weight> {
        let parts: SeamResult<Vec<Tensor>> = at.parts.iter().map(|p| self.tensor(p)).collect();
        match (at.form, <[Tensor; 1]>::try_from(parts?)) {
            (WeightForm::Dense(dtype), Ok([tensor])) if dtype == tensor.dtype() => {
                Ok(Weight::Dense(tensor))
            }
            (WeightForm::Affine(scheme), Err(parts)) => {
                let parts = <[Tensor; 3]>::try_from(parts)
                    .map_err(|p| incompatible(format!("a weight of {} parts", p.len())))?;
                let [words, scales, biases] = parts;
                AffineTensor::new(scheme, words, scales, biases).map(Weight::Affine)
            }
            _ => Err(incompatible("its parts are not those of its form".into())),
        }
    }

    fn tensor(&self, part: &Part) -> SeamResult<Tensor> {
        let file = self.0.get(part.file);
        let bytes = file.map(|f| f.bytes()).unwrap_or_default();
        let end = part.offset.checked_add(part.length);
        match end.filter(|&end| end <= bytes.len()) {
            Some(end) => Tensor::new(
                part.dtype,
                part.shape.clone(),
                bytes.slice(part.offset..end),
            ),
            None => Err(incompatible(format!(
                "{} bytes at {} of file {}, which has {}",
                part.length,
                part.offset,
                part.file,
                bytes.len()
            ))),
        }
    }
}

fn incompatible(message: String) -> SeamError {
    SeamError::new(ErrorCode::Incompatible, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use halfhitch_seam::{DType, WeightId};
    use std::path::Path;

    fn cross(weights: &Weights) -> (Shared, Received) {
        let shared = Shared::new(weights, &CancelToken::new()).unwrap();
        let mut received = Received::default();
        let files = shared.files().into_iter();
        let files = files.map(|fd| fd.try_clone_to_owned().unwrap());
        received.add(files.collect()).unwrap();
        (shared, received)
    }

    #[test]
    fn weights_of_a_checkpoint_are_named_by_their_places() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        for model in ["tiny/llama", "mlx/llama-q4-g32"] {
            let model = fixtures.join(model);
            let checkpoint = Checkpoint::open(&model).unwrap();
            let (shared, received) = cross(checkpoint.weights());
            assert!(shared.memory.is_none(), "something was copied");
            let crossed = received.weights(shared.weights.clone()).unwrap();
            assert_eq!(crossed.manifest(), checkpoint.weights().manifest());
            for (id, weight) in checkpoint.weights().iter() {
                assert_eq!(crossed.get(id).unwrap().to_f32(), weight.to_f32(), "{id}");
            }
        }
    }

    #[test]
    fn weights_in_memory_are_written_aligned_and_sealed() {
        let tensor = |n: usize| {
            let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
            Weight::Dense(Tensor::from_f32(vec![n], &values).unwrap())
        };
        let weights = Weights::new([
            (WeightId::Embedding, tensor(3)),
            (WeightId::FinalNorm, tensor(5)),
        ]);
        let (shared, received) = cross(&weights);
        let places: Vec<usize> = shared.weights.iter().map(|w| w.parts[0].offset).collect();
        assert!(places.iter().all(|p| p.is_multiple_of(ALIGNMENT)));
        let crossed = received.weights(shared.weights.clone()).unwrap();
        for (id, weight) in weights.iter() {
            assert_eq!(crossed.get(id).unwrap().to_f32(), weight.to_f32());
        }
        let mut file = File::from(shared.files()[0].try_clone_to_owned().unwrap());
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
    }

    #[test]
    fn places_that_are_in_no_file_are_refused() {
        let weights = Weights::new([(
            WeightId::FinalNorm,
            Weight::Dense(Tensor::from_f32(vec![4], &[1.0; 4]).unwrap()),
        )]);
        let (shared, received) = cross(&weights);
        let changes: [fn(&mut WeightAt); 7] = [
            |w| w.parts[0].file = 1,
            |w| w.parts[0].offset = usize::MAX,
            |w| w.parts[0].length = 17,
            |w| w.parts[0].shape = vec![usize::MAX, 4],
            |w| w.parts[0].dtype = DType::F16,
            |w| w.parts.clear(),
            |w| w.form = WeightForm::Dense(DType::U32),
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut weights = shared.weights.clone();
            change(&mut weights[0]);
            assert!(received.weights(weights).is_err(), "case {i}");
        }
    }
}
