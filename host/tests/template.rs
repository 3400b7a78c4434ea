//! Chat templates against transformers, case by case.

use std::path::{Path, PathBuf};

use halfhitch::text::{ChatTemplate, Message, RenderOptions, SpecialTokens};
use serde_json::{Map, Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/chat")
}

fn read(name: &str) -> Value {
    let text = std::fs::read_to_string(fixtures().join(name)).expect(name);
    serde_json::from_str(&text).expect(name)
}

/// A model folder with this template and these special tokens.
fn template(source: &str, specials: &Value) -> Result<ChatTemplate, String> {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("chat_template.jinja"), source).expect("written");
    std::fs::write(
        dir.path().join("tokenizer_config.json"),
        specials.to_string(),
    )
    .expect("written");
    ChatTemplate::from_dir(dir.path())
        .map(|t| t.expect("a template"))
        .map_err(|e| e.to_string())
}

fn now(file: &Value) -> Option<jiff::civil::DateTime> {
    Some(file["now"].as_str().expect("now").parse().expect("a time"))
}

fn messages(value: &Value) -> Vec<Message> {
    serde_json::from_value(value.clone()).expect("messages")
}

#[test]
fn templates_in_the_manner_of_real_models_render_as_transformers_does() {
    let file = read("cases.json");
    let mut wrong = Vec::new();
    let mut cases = 0;
    for style in file["styles"].as_array().expect("styles") {
        let name = style["template"].as_str().expect("template");
        let source = std::fs::read_to_string(fixtures().join(name)).expect(name);
        let template = template(&source, &style["special_tokens"]).expect(name);
        for case in style["cases"].as_array().expect("cases") {
            cases += 1;
            let conversation = case["name"].as_str().expect("name");
            let options = RenderOptions {
                add_generation_prompt: case["add_generation_prompt"] == json!(true),
                tools: (case["tools"] == json!(true)).then(|| file["tools"].clone()),
                variables: case["variables"].as_object().cloned().unwrap_or_default(),
                now: now(&file),
                ..RenderOptions::default()
            };
            let given = messages(&file["conversations"][conversation]);
            let got = template.render(&given, &options);
            let ok = match (&got, case["expected"].as_str()) {
                (Ok(got), Some(expected)) => got == expected,
                (Err(e), None) => {
                    case["error"] != "TemplateError"
                        || e.message
                            .contains(case["message"].as_str().expect("message"))
                }
                _ => false,
            };
            if !ok {
                wrong.push(format!(
                    "{name} {conversation}:\n  got {got:?}\n  want {case}"
                ));
            }
        }
    }
    assert!(cases > 50, "{cases} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_feature_of_the_language_renders_as_jinja_does() {
    let file = read("features.json");
    let mut wrong = Vec::new();
    let features = file["features"].as_array().expect("features");
    assert!(features.len() > 50);
    for feature in features {
        let source = feature["source"].as_str().expect("source");
        let options = RenderOptions {
            add_generation_prompt: false,
            now: now(&file),
            ..RenderOptions::default()
        };
        let got = template(source, &json!({})).and_then(|t| {
            t.render(&messages(&file["messages"]), &options)
                .map_err(|e| e.to_string())
        });
        let ok = match (&got, feature["expected"].as_str()) {
            (Ok(got), Some(expected)) => got == expected,
            (Err(e), None) => {
                assert!(!e.contains('\n'), "{e}");
                feature["error"] != "TemplateError"
                    || e.contains(feature["message"].as_str().expect("message"))
            }
            _ => false,
        };
        if !ok {
            wrong.push(format!(
                "{source}\n  got  {got:?}\n  want {:?}",
                feature["expected"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Renders a template over one message.
fn render(source: &str, options: &RenderOptions) -> Result<String, String> {
    ChatTemplate::from_source(source, SpecialTokens::default())
        .and_then(|t| t.render(&[Message::user("hi")], options))
        .map_err(|e| e.to_string())
}

#[test]
fn values_print_as_python_prints_them() {
    let variables = json!({
        "v": [1.0, 1e16, 1e15, 1e-4, 1e-5, -0.0, 0.1, 123456789.125, true, null],
        "s": ["a'b", "a\"b", "a'\"b", "tab\t\u{7f}\u{e9}\u{200b}\u{301}", "\\"],
        "d": {"b": {"a": []}, "a": "x"},
    });
    let options = RenderOptions {
        variables: variables.as_object().cloned().expect("an object"),
        ..RenderOptions::default()
    };
    for (source, expected) in [
        (
            "{{ v }}",
            "[1.0, 1e+16, 1000000000000000.0, 0.0001, 1e-05, -0.0, 0.1, 123456789.125, True, None]",
        ),
        (
            "{{ s }}",
            "[\"a'b\", 'a\"b', 'a\\'\"b', 'tab\\t\\x7fé\\u200b\u{301}', '\\\\']",
        ),
        ("{{ d }}", "{'b': {'a': []}, 'a': 'x'}"),
        ("{{ d ~ none }}", "{'b': {'a': []}, 'a': 'x'}None"),
        ("{{ [missing] }}", "[Undefined]"),
        ("{{ d.items() | list }}", "[('b', {'a': []}), ('a', 'x')]"),
        ("{{ (1,) }} {{ () }} {{ (1, 2)[1:] }}", "(1,) () (2,)"),
        (
            "{{ 'a  b '.split() }} {{ ' a b '.split(' ') }} {{ ' a b c '.rsplit(none, 1) }}",
            "['a', 'b'] ['', 'a', 'b', ''] [' a b', 'c']",
        ),
        (
            "{{ 'é-x'.find('x') }} {{ 'abc'.index('c') }} {{ 'aé'.upper() }}",
            "2 2 AÉ",
        ),
        (
            "{{ 'a'.center(4, '.') }} {{ 'ab'.center(5, '.') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }}",
            ".a.. ..ab. 007 -007",
        ),
        (
            "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round }}",
            "2.0 4.0 2.67 7",
        ),
        (
            "{{ 'abcdef'[4:1:-1] }}{{ 'abc'[0:2:-1] }} {{ [1,2,3][::-2] }} {{ 'abc'[-9:9] }}",
            "edc [3, 1] abc",
        ),
        (
            "{{ 'x' | int }} {{ 'x' | int(7) }} {{ ' 12 ' | int }} {{ '3.9' | int }} {{ none | float }} {{ '2' | float }}",
            "0 7 12 3 0.0 2.0",
        ),
        (
            "{{ [] * 9223372036854775807 }}{{ '' * 9223372036854775807 }}{{ [1] * -1 }}{{ [1, 'a'] * 2 }}",
            "[][][1, 'a', 1, 'a']",
        ),
        (
            "{{ 5 % -3 }} {{ -5 // 3 }} {{ 5.5 // 2 }} {{ 2 ** -1 }} {{ true + true }}",
            "-1 -2 2.0 0.5 2",
        ),
    ] {
        assert_eq!(
            render(source, &options).as_deref(),
            Ok(expected),
            "{source}"
        );
    }
}

#[test]
fn the_places_of_a_template_have_an_order() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    let shown = || {
        ChatTemplate::from_dir(dir.path())
            .expect("readable")
            .map(|t| {
                t.render(&[Message::user("x")], &RenderOptions::default())
                    .expect("rendered")
            })
    };
    assert_eq!(shown(), None);
    std::fs::write(path("chat_template.json"), r#"{"chat_template": "json"}"#).expect("written");
    assert_eq!(shown().as_deref(), Some("json"));
    let list = json!({"chat_template": [
        {"name": "default", "template": "config {{ bos_token }}"},
        {"name": "tool_use", "template": "tools"},
    ], "bos_token": {"content": "<s>"}});
    std::fs::write(path("tokenizer_config.json"), list.to_string()).expect("written");
    assert_eq!(shown().as_deref(), Some("config <s>"));
    let template = ChatTemplate::from_dir(dir.path())
        .expect("readable")
        .expect("there");
    let with_tools = RenderOptions {
        tools: Some(json!([])),
        ..RenderOptions::default()
    };
    let message = [Message::user("x")];
    assert_eq!(
        template.render(&message, &with_tools).as_deref(),
        Ok("tools")
    );
    let named = RenderOptions {
        template: Some("nope".into()),
        ..RenderOptions::default()
    };
    let e = template
        .render(&message, &named)
        .expect_err("no such template")
        .to_string();
    assert!(e.contains("nope") && e.contains("tool_use"), "{e}");
    std::fs::write(path("chat_template.jinja"), "file").expect("written");
    assert_eq!(shown().as_deref(), Some("file"));
    std::fs::create_dir(path("additional_chat_templates")).expect("made");
    std::fs::write(path("additional_chat_templates/tool_use.jinja"), "own").expect("written");
    let template = ChatTemplate::from_dir(dir.path())
        .expect("readable")
        .expect("there");
    assert_eq!(template.render(&message, &with_tools).as_deref(), Ok("own"));
}

#[test]
fn messages_keep_their_fields_and_lose_those_that_are_null() {
    let message: Message = serde_json::from_value(json!({
        "role": "assistant", "content": null, "tool_calls": [{"id": 1}], "reasoning": "why"
    }))
    .expect("a message");
    let template = ChatTemplate::from_source(
        "{{ messages[0].content is defined }} {{ messages[0].tool_calls[0].id }} {{ messages[0].reasoning_content }} {{ messages[0].thinking }}",
        SpecialTokens::default(),
    )
    .expect("a template");
    let text = template.render(&[message], &RenderOptions::default());
    assert_eq!(text.as_deref(), Ok("False 1 why why"));
    let e = template
        .render(&[], &RenderOptions::default())
        .expect_err("empty");
    assert!(e.to_string().contains("message"), "{e}");
}

#[test]
fn the_callers_variables_win() {
    let variables = Map::from_iter([
        ("bos_token".to_owned(), json!("<b>")),
        ("enable_thinking".to_owned(), json!(false)),
    ]);
    let options = RenderOptions {
        variables,
        ..RenderOptions::default()
    };
    assert_eq!(
        render("{{ bos_token }}{{ enable_thinking }}", &options).as_deref(),
        Ok("<b>False")
    );
}
