//! Runs a template: parsed, rewritten, compiled and evaluated, with everything bounded.

use std::sync::Arc;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use jiff::civil::DateTime;
use minijinja::machinery::ast::Stmt;
use minijinja::machinery::{
    CodeGenerator, Token, Vm, WhitespaceConfig, make_string_output, parse, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use super::super::quiet::quietly;
use super::super::tokenizer::one_line;
use super::budget::{Budget, error};
use super::{filters, ops, python, rewrite, strings};

/// Stack of the thread that a template runs on: its tree is walked recursively.
const STACK_BYTES: usize = 128 << 20;
/// Most tokens between `{{` and `}}`; they bound how deep a chain of operators nests.
const MAX_EXPRESSION_TOKENS: usize = 8192;
/// Most `elif`s; each nests in the one before it.
const MAX_ELIFS: usize = 1024;
/// Deepest calls of macros, times the engine's cost of one, which is 4.
const MAX_RECURSION: usize = 240;

/// Nothing but whitespace control as transformers sets it.
const WHITESPACE: WhitespaceConfig = WhitespaceConfig {
    keep_trailing_newline: false,
    lstrip_blocks: true,
    trim_blocks: true,
};

/// Whether the template can be used, without running it.
pub(super) fn check(source: &str) -> SeamResult<()> {
    on_own_stack(|| parsed(source, |_| Ok(())))
}

/// The text of the template with these variables. `input` is how many bytes they hold.
pub(super) fn run(
    source: &str,
    variables: Value,
    input: usize,
    now: Option<DateTime>,
) -> SeamResult<String> {
    on_own_stack(|| {
        let budget = Arc::new(Budget::new(input));
        parsed(source, |template| {
            let env = environment(&budget, now);
            let mut generator = CodeGenerator::new("template", source);
            generator.compile_stmt(template);
            let (instructions, blocks) = generator.finish();
            let mut text = String::new();
            let mut output = make_string_output(&mut text);
            Vm::new(&env)
                .eval(
                    &instructions,
                    variables,
                    &blocks,
                    &mut output,
                    AutoEscape::None,
                )
                .map_err(|e| failure(&e, &budget))?;
            drop(output);
            Ok(text)
        })
    })
}

/// Runs `f` on a thread of its own, so that no tree is too deep for the stack and a panic of the
/// engine ends nothing else.
fn on_own_stack<T: Send>(f: impl FnOnce() -> SeamResult<T> + Send) -> SeamResult<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || quietly(f))
            .map_err(|e| SeamError::new(ErrorCode::Io, format!("cannot start a thread: {e}")))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(broken("the chat template breaks the template engine")))
    })
}

/// Parses and rewrites the template and hands it on.
fn parsed<T>(source: &str, then: impl FnOnce(&Stmt<'_>) -> SeamResult<T>) -> SeamResult<T> {
    let source_text = without_generation(source);
    let invalid = |e: Error| {
        broken(format!(
            "the chat template is not valid Jinja: {}",
            reason(&e)
        ))
    };
    bounded(&source_text).map_err(invalid)?;
    let template = parse(&source_text, "template", SyntaxConfig, WHITESPACE).map_err(invalid)?;
    let template = rewrite::rewrite(&source_text, &template).map_err(|name| {
        broken(format!(
            "the chat template uses {{% {name} %}}, which is not supported"
        ))
    })?;
    then(&template)
}

/// Refuses what would nest too deep; the parser bounds only what it recurses on itself.
fn bounded(source: &str) -> Result<(), Error> {
    let (mut run, mut elifs) = (0, 0);
    for token in tokenize(source, false, SyntaxConfig, WHITESPACE) {
        match token?.0 {
            Token::BlockStart | Token::VariableStart => run = 0,
            Token::Ident("elif") => elifs += 1,
            _ => run += 1,
        }
        if run > MAX_EXPRESSION_TOKENS || elifs > MAX_ELIFS {
            return Err(error("an expression or a chain of elif is too long"));
        }
    }
    Ok(())
}

/// `{% generation %}` marks what the model wrote, for training. It renders its content, so the tags
/// become those of a condition that always holds.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let word = tag[..end]
            .trim_start_matches(['-', '+'])
            .trim_end_matches(['-', '+'])
            .trim();
        let instead = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&tag[..end].replace(word, instead));
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

/// The environment of transformers' `apply_chat_template`.
fn environment(budget: &Arc<Budget>, now: Option<DateTime>) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_fuel(Some(budget.fuel()));
    env.set_recursion_limit(MAX_RECURSION);
    env.set_debug(false);
    env.remove_global("debug");
    ops::install(&mut env, budget);
    filters::install(&mut env, budget);
    strings::install(&mut env, budget);
    let printing = budget.clone();
    env.set_formatter(move |out, _, value| {
        printing.tick()?;
        let written = match value.as_str() {
            Some(text) => {
                printing.bytes(text.len())?;
                out.write_str(text)
            }
            None => out.write_str(&python::text(&printing, value)?),
        };
        written.map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    let raising = budget.clone();
    env.add_function(
        "raise_exception",
        move |message: &Value| -> Result<Value, Error> {
            Err(raising.raise(python::text(&raising, message)?))
        },
    );
    env.add_function("strftime_now", move |format: &str| strftime(format, now));
    let counting = budget.clone();
    env.add_function("namespace", move |values: Option<Value>| {
        let values =
            values.unwrap_or_else(|| Value::from(Kwargs::from_iter([] as [(&str, Value); 0])));
        // One inside another could contain itself.
        counting.count(&Value::from(vec![values.clone()]), false)?;
        minijinja::functions::namespace(Some(values))
    });
    env.add_function("cycler", minijinja_contrib::globals::cycler);
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env
}

/// `strftime_now(format)`: local time.
fn strftime(format: &str, now: Option<DateTime>) -> Result<String, Error> {
    // The longest fields are names; what asks for a width asks for something else.
    if format.len() > 256 || format.bytes().any(|b| b.is_ascii_digit()) {
        return Err(error("strftime_now: the format is too long or has a width"));
    }
    let formatted = match now {
        Some(now) => jiff::fmt::strtime::format(format, now),
        None => jiff::fmt::strtime::format(format, &jiff::Zoned::now()),
    };
    formatted.map_err(|e| error(format!("strftime_now: {e}")))
}

/// What is said of a template that ended in an error.
fn failure(e: &Error, budget: &Budget) -> SeamError {
    if let Some(message) = budget.raised() {
        let message = one_line(&message);
        return SeamError::invalid_input(format!(
            "the chat template refuses the conversation: {message}"
        ));
    }
    broken(match e.kind() {
        ErrorKind::OutOfFuel => "the chat template runs too long".to_owned(),
        _ => format!("the chat template fails: {}", reason(e)),
    })
}

fn broken(message: impl Into<String>) -> SeamError {
    SeamError::invalid_model(message).hint("--raw sends the prompt without the chat template")
}

/// The engine's error on one line, with the line of the template.
fn reason(e: &Error) -> String {
    let mut text = match e.detail() {
        Some(detail) if e.kind() == ErrorKind::InvalidOperation => detail.to_owned(),
        Some(detail) => format!("{}: {detail}", kind_name(e)),
        None => kind_name(e),
    };
    if let Some(line) = e.line() {
        text = format!("line {line}: {text}");
    }
    one_line(&text)
}

/// The kind of an error in the engine's words.
fn kind_name(e: &Error) -> String {
    Error::from(e.kind()).to_string()
}
