//! Templates that want to run for ever, take all memory or break the engine: each is a one-line
//! error, soon.

use std::time::{Duration, Instant};

use halfhitch::text::{ChatTemplate, Message, RenderOptions, SpecialTokens};

fn render(source: &str) -> Result<String, String> {
    let message = Message::user("x".repeat(1000));
    ChatTemplate::from_source(source, SpecialTokens::default())
        .and_then(|t| t.render(&[message], &RenderOptions::default()))
        .map_err(|e| e.to_string())
}

/// Peak resident memory of this process in bytes, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()
        .map(|kb| kb * 1024)
}

#[test]
fn hostile_templates_are_errors() {
    let nested =
        |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
    let cases: Vec<(&str, String)> = vec![
        ("nested loops", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into()),
        ("loops that print", "{% for a in range(99999) %}{% for b in range(99999) %}text{% endfor %}{% endfor %}".into()),
        ("recursive macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into()),
        ("two macros", "{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}".into()),
        ("recursive loop", "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".into()),
        ("repeat", "{{ 'a' * 10**9 }}".into()),
        ("repeat reversed", "{{ 10**9 * 'a' }}".into()),
        ("repeated list", "{{ [0] * 10**9 }}".into()),
        ("repeats of repeats", "{{ ('a' * 10**6) * 10**6 }}".into()),
        ("large range", "{{ range(10**9) | list }}".into()),
        ("large range in a loop", "{% for a in range(10**9) %}{% endfor %}".into()),
        ("negative range", "{{ range(0, 0 - 10**12, -1) | list }}".into()),
        ("doubling by +", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}".into()),
        ("doubling by ~", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}".into()),
        ("doubling by format", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = '%s%s' | format(ns.s, ns.s) %}{% endfor %}".into()),
        ("doubling by str.format", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}".into()),
        ("doubling by join", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}".into()),
        ("doubling by capture", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}".into()),
        ("doubling by replace", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s | replace('a', 'aa') %}{% endfor %}".into()),
        ("doubling by macro", "{% macro d(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = d(ns.s) %}{% endfor %}".into()),
        ("doubling a list", "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}".into()),
        ("sharing a list", "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}".into()),
        ("sharing a list, compared", "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}".into()),
        ("sharing a dict", "{% set ns = namespace(s={}) %}{% for i in range(60) %}{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ ns.s | tojson }}".into()),
        ("sharing by map", "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] | map('list') | list %}{% endfor %}".into()),
        ("deep list", "{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}".into()),
        ("a namespace in itself", "{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns }}".into()),
        ("a namespace in its list", "{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns }}".into()),
        ("a namespace in its dict", "{% set ns = namespace() %}{% set ns.l = dict(a=ns) %}{{ ns.l == ns.l }}".into()),
        ("replace grows", "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}".into()),
        ("method replace grows", "{{ ('a' * 10**6).replace('', 'b' * 10**6) }}".into()),
        ("join grows", "{{ ('b' * 10**6).join(['a'] * 10**6) }}".into()),
        ("join filter grows", "{{ (['a'] * 10**6) | join('b' * 10**6) }}".into()),
        ("indent", "{{ 'a' | indent(10**12, true) }}".into()),
        ("indent grows", "{{ ('\\na' * 10**6) | indent(10**6) }}".into()),
        ("center", "{{ 'a' | center(10**12) }}".into()),
        ("ljust", "{{ 'a'.ljust(10**12) }}".into()),
        ("zfill", "{{ 'a'.zfill(10**12) }}".into()),
        ("format width", "{{ '%1000000000d' % 1 }}".into()),
        ("format filter width", "{{ '%1000000000s' | format('a') }}".into()),
        ("format precision", "{{ '%.1000000000f' % 1.0 }}".into()),
        ("format star", "{{ '%*d' | format(1000000000, 1) }}".into()),
        ("str.format width", "{{ '{:1000000000}'.format(1) }}".into()),
        ("str.format nested width", "{{ '{:{}}'.format(1, 1000000000) }}".into()),
        ("batch fill", "{{ [1] | batch(10**12, 0) | list }}".into()),
        ("slice number", "{{ [1] | slice(10**12) | list }}".into()),
        ("tojson indent", "{{ [1] | tojson(indent=10**12) }}".into()),
        ("power", "{{ 10 ** 10 ** 10 }}".into()),
        ("division by zero", "{{ 1 / 0 }}{{ 1 // 0 }}{{ 1 % 0 }}".into()),
        ("overflow", "{{ -170141183460469231731687303715884105727 - 2 }}".into()),
        ("zero step", "{{ 'abc'[::0] }}".into()),
        ("time format", "{{ strftime_now('%999999999d') }}".into()),
        ("deep parentheses", format!("{{{{ {} }}}}", nested("(", ")", 100_000))),
        ("deep brackets", format!("{{{{ {} }}}}", nested("[", "]", 100_000))),
        ("many nots", format!("{{{{ {}1 }}}}", "not ".repeat(100_000))),
        ("many minuses", format!("{{{{ {}1 }}}}", "-".repeat(100_000))),
        ("long sum", format!("{{{{ {}1 }}}}", "1+".repeat(100_000))),
        ("long attributes", format!("{{{{ a{} }}}}", ".a".repeat(100_000))),
        ("long filters", format!("{{{{ a{} }}}}", "|e".repeat(100_000))),
        ("long elif", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000))),
        ("deep ifs", "{% if 1 %}".repeat(20_000)),
        ("deep ternary", format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(20_000))),
        ("other file", "{% include '/etc/passwd' %}".into()),
        ("import", "{% import 'x' as y %}".into()),
        ("extends", "{% extends 'x' %}".into()),
        ("change a list", "{{ messages.append(1) }}".into()),
        ("unclosed", "{% for m in messages %}".into()),
        ("large template", "x".repeat(600 << 10)),
        ("many lines", format!("{}{{{{ x.y }}}}", "\n".repeat(100_000))),
        ("raise", "{{ raise_exception('a\nb') }}".into()),
    ];
    for (name, source) in &cases {
        let start = Instant::now();
        match render(source) {
            Ok(text) => panic!("{name}: gave {} bytes", text.len()),
            Err(e) => {
                assert!(!e.contains('\n'), "{name}: {e}");
                assert!(e.len() < 600, "{name}: {e}");
                assert!(e.contains("template"), "{name}: {e}");
            }
        }
        let took = start.elapsed();
        // A limit for a debug build on a busy machine; each takes far less.
        assert!(took < Duration::from_secs(8), "{name} took {took:?}");
    }
    if let Some(peak) = peak_memory() {
        assert!(peak < 1 << 30, "{peak} bytes at the peak");
    }
}

#[test]
fn a_long_conversation_is_no_attack() {
    let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{{ '\\n' + eos ~ '' }}{% endfor %}";
    let template = ChatTemplate::from_source(source, SpecialTokens::default()).expect("a template");
    let messages: Vec<Message> = (0..2000)
        .map(|i| Message::user(format!("message {i} {}", "word ".repeat(500))))
        .collect();
    let options = RenderOptions {
        variables: serde_json::Map::from_iter([("eos".to_owned(), "</s>".into())]),
        ..RenderOptions::default()
    };
    let text = template.render(&messages, &options).expect("rendered");
    assert!(text.len() > 2000 * 2500);
}
