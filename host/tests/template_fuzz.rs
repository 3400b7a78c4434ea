//! Random templates: the engine must neither break nor run for long, whatever it is given.

use std::time::{Duration, Instant};

use halfhitch::text::{ChatTemplate, Message, RenderOptions, SpecialTokens};
use proptest::prelude::*;

/// Expressions, from pieces that templates are made of.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "messages",
        "messages[0]",
        "ns",
        "x",
        "m",
        "loop",
        "none",
        "true",
        "0",
        "-1",
        "1.5",
        "10**30",
        "'a'",
        "'%s{}'",
        "''",
        "[]",
        "{}",
        "()",
        "[1, 'b', none]",
        "{'a': [1]}",
        "range(5)",
        "bos",
        "9223372036854775807",
        "namespace(x=1)",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(5, 40, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        let op = prop::sample::select(vec![
            "+", "-", "*", "/", "//", "%", "**", "~", "and", "or", "==", "<", "in", "not in", "is",
        ]);
        let filter = prop::sample::select(vec![
            "join",
            "tojson",
            "list",
            "length",
            "first",
            "last",
            "sort",
            "unique",
            "reverse",
            "round",
            "int",
            "float",
            "string",
            "trim",
            "indent",
            "center",
            "upper",
            "title",
            "dictsort",
            "items",
            "sum",
            "min",
            "max",
            "abs",
            "default",
            "map('upper')",
            "map(attribute='role')",
            "batch(2, 0)",
            "slice(3)",
            "groupby('role')",
            "select",
            "reject('none')",
            "selectattr('role')",
            "wordcount",
            "format(1)",
            "replace('a', 'b')",
            "tojson(indent=2)",
            "attr('a')",
            "e",
            "safe",
            "capitalize",
        ]);
        let method = prop::sample::select(vec![
            "upper()",
            "split()",
            "split('a', 1)",
            "rsplit()",
            "strip('a')",
            "items()",
            "get('a')",
            "keys()",
            "values()",
            "find('a')",
            "format(1, a=2)",
            "join([1])",
            "splitlines(true)",
            "title()",
            "zfill(4)",
            "center(9)",
            "partition('a')",
            "count('a')",
            "index(1)",
            "a",
            "role",
            "x.y",
            "replace('', 'b')",
            "startswith(('a', 'b'))",
            "isdigit()",
        ]);
        let bound = prop_oneof![Just(String::new()), (-4i64..4).prop_map(|n| n.to_string())];
        prop_oneof![
            (two, op).prop_map(|((a, b), op)| format!("({a} {op} {b})")),
            (inner.clone(), filter).prop_map(|(a, f)| format!("({a} | {f})")),
            (inner.clone(), method).prop_map(|(a, m)| format!("({a}).{m}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a})[{b}]")),
            (inner.clone(), bound.clone(), bound.clone(), bound)
                .prop_map(|(a, x, y, z)| format!("({a})[{x}:{y}:{z}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{{{a}: {b}}}")),
        ]
    })
}

fn template() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        expression().prop_map(|e| format!("{{{{ {e} }}}}")),
        expression().prop_map(|e| format!("{{% set ns.x = {e} %}}")),
        expression().prop_map(|e| format!("{{% set x = {e} %}}")),
        "[ a-z{}%#\n-]{0,12}",
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let body = prop::collection::vec(inner, 0..4).prop_map(|parts| parts.concat());
        prop_oneof![
            (expression(), body.clone())
                .prop_map(|(e, b)| format!("{{% for m in {e} %}}{b}{{% endfor %}}")),
            (expression(), body.clone())
                .prop_map(|(e, b)| format!("{{%- if {e} -%}}{b}{{% else %}}{b}{{% endif %}}")),
            body.clone()
                .prop_map(|b| format!("{{% set x %}}{b}{{% endset %}}{{{{ x }}}}")),
            body.clone()
                .prop_map(|b| format!("{{% macro f(x) %}}{b}{{% endmacro %}}{{{{ f(1) }}}}")),
            body.prop_map(|b| format!("{{% filter upper %}}{b}{{% endfilter %}}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_template_breaks_the_engine(source in template()) {
        let source = format!("{{% set ns = namespace(x='a') %}}{source}");
        let start = Instant::now();
        let result = ChatTemplate::from_source(&source, SpecialTokens::default())
            .and_then(|t| t.render(&[Message::user("hi"), Message::assistant("ho")], &RenderOptions::default()));
        if let Err(e) = result {
            let e = e.to_string();
            prop_assert!(!e.contains("breaks the template engine"), "{e}: {source}");
            prop_assert!(!e.contains('\n'), "{e}");
        }
        prop_assert!(start.elapsed() < Duration::from_secs(5), "{:?}: {source}", start.elapsed());
    }
}
