//! `halfhitch chat`: a conversation, on a terminal or through a pipe.
//!
//! Each turn renders the whole conversation and runs only what is new: the session keeps the prefix
//! that both have in common.

use std::io::{self, BufRead, IsTerminal};
use std::ops::ControlFlow;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::args::ChatArgs;
use super::failure::Failure;
use super::generate::{Printer, options, stats_line};
use super::prompt::{no_template, tokenizer};
use super::{Context, output, use_threads};
use crate::engine::{Engine, FinishReason, GenerateOptions, Model};
use crate::text::{ChatTemplate, Message, RenderOptions};

/// Longest line that is read, in bytes.
const MAX_LINE: u64 = 1 << 20;

const HELP: &str = "\
/help            this list
/system TEXT     set the system message and start over; without TEXT, remove it
/reset           start over
/exit            leave (as does Ctrl-D)
Ctrl-C stops an answer; pressed twice it leaves.";

/// Runs the command.
pub fn run(args: ChatArgs, context: &Context) -> Result<(), Failure> {
    use_threads(args.device.threads)?;
    let cancel = context.interrupt.token();
    let control = context.control(&cancel);
    let target = context.registry().select(&args.device.backend)?;
    let model = Model::open(&args.model.model, &control)?;
    tokenizer(&model)?;
    let template = model.chat_template()?.ok_or_else(no_template)?;
    let engine = Engine::open(model, target, &args.device.plan_request(), &control)?;
    context.progress.clear();
    let mut conversation = Conversation {
        engine,
        template,
        options: options(&args.stop, &args.sampling, None),
        system: args.system,
        messages: Vec::new(),
    };
    let mut lines = Lines::open(context)?;
    // One that came while the model was opened, and that nobody has looked at since.
    cancel.check()?;
    loop {
        context.interrupt.idle();
        let Some(line) = lines.next()? else {
            return Ok(());
        };
        match Input::parse(&line) {
            Input::Nothing => {}
            Input::Exit => return Ok(()),
            Input::Help => output::note(HELP),
            Input::Reset => conversation.messages.clear(),
            Input::System(text) => {
                conversation.system = text;
                conversation.messages.clear();
            }
            Input::Unknown(command) => {
                output::note(&format!("there is no command {command}; /help lists them"));
            }
            Input::Message(text) => match conversation.answer(text, context) {
                Ok(()) => {}
                // A person can do something about these; a pipe cannot.
                Err(Failure::Error(e)) if lines.interactive() && recoverable(&e, context) => {
                    output::error_line(&super::failure::one_line(&e.to_string()));
                    if e.code == ErrorCode::ContextFull {
                        output::note("/reset starts over");
                    }
                }
                Err(failure) => return Err(failure),
            },
        }
    }
}

/// Whether the conversation can go on after `error`: with an isolated backend also where that has died.
fn recoverable(error: &SeamError, context: &Context) -> bool {
    match error.code {
        ErrorCode::ContextFull | ErrorCode::InvalidInput => true,
        ErrorCode::Backend | ErrorCode::Poisoned => context.isolation.is_some(),
        _ => false,
    }
}

struct Conversation {
    engine: Engine,
    template: ChatTemplate,
    options: GenerateOptions,
    system: Option<String>,
    messages: Vec<Message>,
}

impl Conversation {
    /// Answers `text`. Where that fails the conversation is as it was before. An isolated backend whose
    /// process ended since the last answer is started again.
    fn answer(&mut self, text: &str, context: &Context) -> Result<(), Failure> {
        match self.try_to_answer(text, context) {
            Err(Failure::Error(e))
                if e.code == ErrorCode::Poisoned && context.isolation.is_some() =>
            {
                let cancel = context.interrupt.begin();
                self.engine.reopen(&context.control(&cancel))?;
                self.try_to_answer(text, context)
            }
            other => other,
        }
    }

    fn try_to_answer(&mut self, text: &str, context: &Context) -> Result<(), Failure> {
        self.messages.push(Message::user(text));
        let result = self.generate(context);
        match result {
            Ok(answer) => {
                self.messages.push(Message::assistant(answer));
                Ok(())
            }
            Err(failure) => {
                self.messages.pop();
                Err(failure)
            }
        }
    }

    fn generate(&mut self, context: &Context) -> Result<String, Failure> {
        let cancel = context.interrupt.begin();
        let control = context.control(&cancel);
        let prompt = self.prompt()?;
        let mut printer = Printer::default();
        let mut broken = None;
        let completion = self
            .engine
            .generate(&prompt, &self.options, &control, &mut |piece| {
                context.progress.clear();
                match printer.print(piece) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(failure) => {
                        broken = Some(failure);
                        ControlFlow::Break(())
                    }
                }
            })?;
        context.progress.clear();
        if let Some(failure) = broken {
            return Err(failure);
        }
        printer.end()?;
        if !context.quiet {
            if completion.finish_reason == FinishReason::Cancelled {
                output::note("(stopped)");
            }
            output::note(&stats_line(&completion));
        }
        Ok(completion.text.unwrap_or_default())
    }

    fn prompt(&self) -> SeamResult<Vec<halfhitch_seam::TokenId>> {
        let mut messages: Vec<Message> = self.system.iter().map(Message::system).collect();
        messages.extend_from_slice(&self.messages);
        let rendered = self.template.render(&messages, &RenderOptions::default())?;
        tokenizer(self.engine.model())?.encode_chat(&rendered)
    }
}

/// A line that was typed.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Nothing,
    Message(&'a str),
    Help,
    Reset,
    Exit,
    System(Option<String>),
    Unknown(&'a str),
}

impl<'a> Input<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        if line.is_empty() {
            return Self::Nothing;
        }
        if !line.starts_with('/') {
            return Self::Message(line);
        }
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "/help" | "/?" => Self::Help,
            "/reset" => Self::Reset,
            "/exit" | "/quit" => Self::Exit,
            "/system" => Self::System(Some(rest.trim().to_owned()).filter(|t| !t.is_empty())),
            // A path or a comment may begin with a slash; a command is one word of letters.
            _ if command[1..].chars().all(|c| c.is_ascii_alphabetic()) && rest.is_empty() => {
                Self::Unknown(command)
            }
            _ => Self::Message(line),
        }
    }
}

/// Where lines come from.
enum Lines {
    /// A terminal, and what was typed before; kept for this conversation alone, in memory.
    Terminal(Vec<String>),
    Pipe,
}

impl Lines {
    fn open(context: &Context) -> Result<Self, Failure> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        if !context.quiet {
            output::note("/help lists the commands, Ctrl-D leaves");
        }
        Ok(Self::Terminal(Vec::new()))
    }

    const fn interactive(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line; nothing at the end.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        match self {
            Self::Pipe => read_line(io::stdin().lock()).map_err(Failure::Error),
            Self::Terminal(history) => {
                // An editor takes Ctrl-C over for as long as it lives, so it lives for one line: while
                // an answer comes, Ctrl-C is ours.
                let mut editor = DefaultEditor::new().map_err(terminal)?;
                for line in history.iter() {
                    editor.add_history_entry(line).map_err(terminal)?;
                }
                let mut pressed = false;
                loop {
                    match editor.readline("> ") {
                        Ok(line) => {
                            history.push(line.clone());
                            return Ok(Some(line));
                        }
                        Err(ReadlineError::Eof) => return Ok(None),
                        Err(ReadlineError::Interrupted) if pressed => {
                            return Err(Failure::Interrupted);
                        }
                        Err(ReadlineError::Interrupted) => {
                            pressed = true;
                            output::note("Ctrl-C once more, Ctrl-D or /exit leaves");
                        }
                        Err(error) => return Err(terminal(error).into()),
                    }
                }
            }
        }
    }
}

fn terminal(error: ReadlineError) -> SeamError {
    SeamError::new(ErrorCode::Io, format!("reading the terminal: {error}"))
}

fn read_line(from: impl BufRead) -> SeamResult<Option<String>> {
    let io = |e: io::Error| SeamError::new(ErrorCode::Io, format!("reading standard input: {e}"));
    let mut bytes = Vec::new();
    from.take(MAX_LINE + 1)
        .read_until(b'\n', &mut bytes)
        .map_err(io)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() as u64 > MAX_LINE {
        return Err(SeamError::invalid_input(format!(
            "a line of standard input is over {} KiB",
            MAX_LINE >> 10
        )));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| SeamError::invalid_input("a line of standard input is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_messages() {
        let system = |text: &str| Input::System(Some(text.into()));
        let cases = [
            ("  ", Input::Nothing),
            (" hello ", Input::Message("hello")),
            ("/help", Input::Help),
            ("/reset ", Input::Reset),
            ("/exit", Input::Exit),
            ("/system  Be brief. ", system("Be brief.")),
            ("/system", Input::System(None)),
            ("/nope", Input::Unknown("/nope")),
            (
                "/etc/passwd is a file",
                Input::Message("/etc/passwd is a file"),
            ),
            ("/what is this", Input::Message("/what is this")),
        ];
        for (line, input) in cases {
            assert_eq!(Input::parse(line), input, "{line}");
        }
    }

    #[test]
    fn lines_are_bounded() {
        let mut input = &b"one\ntwo"[..];
        assert_eq!(read_line(&mut input).unwrap().as_deref(), Some("one\n"));
        assert_eq!(read_line(&mut input).unwrap().as_deref(), Some("two"));
        assert_eq!(read_line(&mut input).unwrap(), None);
        let endless = io::BufReader::new(io::repeat(b'a'));
        assert!(read_line(endless).unwrap_err().message.contains("1024 KiB"));
        assert!(read_line(&b"\xff\n"[..]).is_err());
    }
}
