//! Measures candle on a GGUF file and prints one JSON object; `bench/common.py` says what is in it.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use candle_core::quantized::gguf_file;
use candle_core::{D, Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PROMPT: usize = 32;

/// The command line: `--name value` pairs, and `--check`.
struct Arguments(Vec<String>);

impl Arguments {
    fn get(&self, name: &str) -> Result<&str> {
        let at = self.0.iter().position(|a| a == name);
        let value = at.and_then(|at| self.0.get(at + 1));
        value
            .map(String::as_str)
            .ok_or_else(|| format!("{name} is missing").into())
    }

    fn number(&self, name: &str) -> Result<usize> {
        Ok(self.get(name)?.parse()?)
    }
}

struct Candle {
    model: ModelWeights,
    vocabulary: u32,
    position: usize,
}

impl Candle {
    fn open(path: &str) -> Result<Self> {
        let mut file = File::open(path)?;
        let content = gguf_file::Content::read(&mut file)?;
        let embedding = content.tensor_infos.get("token_embd.weight");
        let rows = embedding.ok_or("no embedding")?.shape.dims()[0];
        Ok(Self {
            model: ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?,
            vocabulary: u32::try_from(rows)?,
            position: 0,
        })
    }

    /// What follows a prompt, from an empty cache: position 0 empties it.
    fn prefill(&mut self, tokens: &[u32]) -> Result<u32> {
        self.position = 0;
        self.run(tokens)
    }

    fn run(&mut self, tokens: &[u32]) -> Result<u32> {
        let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let logits = self.model.forward(&input, self.position)?;
        self.position += tokens.len();
        Ok(logits.squeeze(0)?.argmax(D::Minus1)?.to_scalar()?)
    }

    /// How long `count` steps take after a prompt.
    fn decode(&mut self, count: usize, draw: &mut Draw) -> Result<Duration> {
        let mut token = self.prefill(&draw.tokens(PROMPT, self.vocabulary))?;
        let start = Instant::now();
        for _ in 0..count {
            token = self.run(&[token])?;
        }
        Ok(start.elapsed())
    }

    fn prompt(&mut self, count: usize, draw: &mut Draw) -> Result<Duration> {
        let tokens = draw.tokens(count, self.vocabulary);
        let start = Instant::now();
        self.prefill(&tokens)?;
        Ok(start.elapsed())
    }
}

/// Tokens by chance, the same ones every time (a multiplicative congruential generator, Lehmer's).
struct Draw(u64);

impl Draw {
    fn tokens(&mut self, count: usize, vocabulary: u32) -> Vec<u32> {
        let mut next = || {
            self.0 = self.0 * 48_271 % 0x7fff_ffff;
            (self.0 % u64::from(vocabulary)) as u32
        };
        (0..count).map(|_| next()).collect()
    }
}

fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn check(candle: &mut Candle) -> Result<Value> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let request: Value = serde_json::from_str(&text)?;
    let prompts: Vec<Vec<u32>> = serde_json::from_value(request["prompts"].clone())?;
    let count: usize = serde_json::from_value(request["count"].clone())?;
    let mut answers = Vec::new();
    for prompt in prompts {
        let mut tokens = vec![candle.prefill(&prompt)?];
        while tokens.len() < count {
            tokens.push(candle.run(&tokens[tokens.len() - 1..])?);
        }
        answers.push(tokens);
    }
    Ok(json!({ "tokens": answers }))
}

fn measure(candle: &mut Candle, args: &Arguments, load: Duration) -> Result<Value> {
    let (prefill, decode) = (args.number("--prefill")?, args.number("--decode")?);
    let mut draw = Draw(0x5eed);
    let first = candle.prompt(PROMPT, &mut draw)?;
    for _ in 0..args.number("--warmup")? {
        candle.prompt(prefill, &mut draw)?;
        candle.decode(decode, &mut draw)?;
    }
    let prefilled = candle.prompt(prefill, &mut draw)?;
    let decoded = candle.decode(decode, &mut draw)?;
    Ok(json!({
        "load_s": load.as_secs_f64(),
        "first_token_s": first.as_secs_f64(),
        "prefill_tokens_per_s": prefill as f64 / prefilled.as_secs_f64(),
        "decode_tokens_per_s": decode as f64 / decoded.as_secs_f64(),
        "peak_rss_bytes": peak_rss_bytes(),
    }))
}

fn main() -> Result<()> {
    let args = Arguments(std::env::args().collect());
    if args.0.iter().any(|a| a == "--version") {
        println!("0.11.1");
        return Ok(());
    }
    let threads = args.number("--threads")?;
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()?;
    let start = Instant::now();
    let mut candle = Candle::open(args.get("--model")?)?;
    let load = start.elapsed();
    let answer = if args.0.iter().any(|a| a == "--check") {
        check(&mut candle)?
    } else {
        measure(&mut candle, &args, load)?
    };
    println!("{answer}");
    Ok(())
}
