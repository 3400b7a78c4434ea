//! The syntax tree of a template, rewritten so that nothing it makes goes uncounted.
//!
//! The engine bounds steps, not what a step makes, and its operators are its own, not Python's. So
//! operators and slices become calls of [`ops`](super::ops), whatever calls, filters and literals
//! make is passed through a check, and literal text is printed like any other value. The tree is
//! built anew, since the engine's nodes cannot be changed in place.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    self, BinOpKind, Call, CallArg, Expr, Filter, ForLoop, IfCond, Spanned, Stmt,
};

use super::ops;

/// Filters and methods whose results hold new text, not text of what they are given.
const FRESH: [&str; 8] = [
    "map",
    "split",
    "rsplit",
    "splitlines",
    "partition",
    "rpartition",
    "list",
    "batch",
];

/// Statements that a sandbox cannot have, by name.
type Refused = &'static str;

/// The rewritten template, or the name of a statement that is not supported.
pub(super) fn rewrite<'a>(source: &'a str, template: &Stmt<'a>) -> Result<Stmt<'a>, Refused> {
    Rewriter { source }.stmt(template)
}

struct Rewriter<'a> {
    source: &'a str,
}

impl<'a> Rewriter<'a> {
    fn body(&self, body: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>, Refused> {
        body.iter().map(|s| self.stmt(s)).collect()
    }

    fn stmt(&self, stmt: &Stmt<'a>) -> Result<Stmt<'a>, Refused> {
        Ok(match stmt {
            Stmt::Template(s) => {
                let children = self.body(&s.children)?;
                Stmt::Template(Spanned::new(ast::Template { children }, s.span()))
            }
            Stmt::EmitExpr(s) => emit(self.expr(&s.expr), s.span()),
            Stmt::EmitRaw(s) => emit(constant(Value::from(s.raw), s.span()), s.span()),
            Stmt::ForLoop(s) => {
                let node = ForLoop {
                    target: self.target(&s.target),
                    iter: self.expr(&s.iter),
                    filter_expr: s.filter_expr.as_ref().map(|e| self.expr(e)),
                    recursive: s.recursive,
                    body: self.body(&s.body)?,
                    else_body: self.body(&s.else_body)?,
                };
                Stmt::ForLoop(Spanned::new(node, s.span()))
            }
            Stmt::IfCond(s) => {
                let node = IfCond {
                    expr: self.expr(&s.expr),
                    true_body: self.body(&s.true_body)?,
                    false_body: self.body(&s.false_body)?,
                };
                Stmt::IfCond(Spanned::new(node, s.span()))
            }
            Stmt::WithBlock(s) => {
                let pairs = s.assignments.iter();
                let node = ast::WithBlock {
                    assignments: pairs.map(|(t, e)| (self.target(t), self.expr(e))).collect(),
                    body: self.body(&s.body)?,
                };
                Stmt::WithBlock(Spanned::new(node, s.span()))
            }
            Stmt::Set(s) => {
                let mut expr = self.expr(&s.expr);
                if matches!(s.target, Expr::GetAttr(_)) {
                    expr = call(ops::STORE, vec![expr], s.span());
                }
                let node = ast::Set {
                    target: self.target(&s.target),
                    expr,
                };
                Stmt::Set(Spanned::new(node, s.span()))
            }
            Stmt::SetBlock(s) => {
                let node = ast::SetBlock {
                    target: self.target(&s.target),
                    filter: s.filter.as_ref().map(|e| self.expr(e)),
                    body: self.body(&s.body)?,
                };
                Stmt::SetBlock(Spanned::new(node, s.span()))
            }
            Stmt::FilterBlock(s) => {
                let node = ast::FilterBlock {
                    filter: self.expr(&s.filter),
                    body: self.body(&s.body)?,
                };
                Stmt::FilterBlock(Spanned::new(node, s.span()))
            }
            Stmt::Macro(s) => Stmt::Macro(Spanned::new(self.macro_node(s)?, s.span())),
            Stmt::CallBlock(s) => {
                let node = ast::CallBlock {
                    call: Spanned::new(self.call_node(&s.call), s.call.span()),
                    macro_decl: Spanned::new(self.macro_node(&s.macro_decl)?, s.macro_decl.span()),
                };
                Stmt::CallBlock(Spanned::new(node, s.span()))
            }
            Stmt::Do(s) => {
                let inner = Spanned::new(self.call_node(&s.call), s.call.span());
                Stmt::Do(Spanned::new(ast::Do { call: inner }, s.span()))
            }
            Stmt::Continue(s) => Stmt::Continue(Spanned::new(ast::Continue, s.span())),
            Stmt::Break(s) => Stmt::Break(Spanned::new(ast::Break, s.span())),
            Stmt::AutoEscape(_) => return Err("autoescape"),
            Stmt::Block(_) => return Err("block"),
            Stmt::Import(_) | Stmt::FromImport(_) => return Err("import"),
            Stmt::Extends(_) => return Err("extends"),
            Stmt::Include(_) => return Err("include"),
        })
    }

    fn macro_node(&self, node: &ast::Macro<'a>) -> Result<ast::Macro<'a>, Refused> {
        Ok(ast::Macro {
            name: node.name,
            args: node.args.iter().map(|e| self.target(e)).collect(),
            defaults: self.exprs(&node.defaults),
            body: self.body(&node.body)?,
        })
    }

    /// What is assigned to: names, lists of them, attributes of namespaces.
    fn target(&self, target: &Expr<'a>) -> Expr<'a> {
        match target {
            Expr::List(l) => {
                let items = l.items.iter().map(|e| self.target(e)).collect();
                Expr::List(Spanned::new(ast::List { items }, l.span()))
            }
            Expr::GetAttr(g) => {
                let node = ast::GetAttr {
                    expr: self.target(&g.expr),
                    name: g.name,
                };
                Expr::GetAttr(Spanned::new(node, g.span()))
            }
            other => self.expr(other),
        }
    }

    fn exprs(&self, exprs: &[Expr<'a>]) -> Vec<Expr<'a>> {
        exprs.iter().map(|e| self.expr(e)).collect()
    }

    fn args(&self, args: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
        args.iter()
            .map(|arg| match arg {
                CallArg::Pos(e) => CallArg::Pos(self.expr(e)),
                CallArg::Kwarg(name, e) => CallArg::Kwarg(name, self.expr(e)),
                CallArg::PosSplat(e) => CallArg::PosSplat(self.expr(e)),
                CallArg::KwargSplat(e) => CallArg::KwargSplat(self.expr(e)),
            })
            .collect()
    }

    /// A call as it is, its parts rewritten. A method stays one: the engine tells it by its form.
    fn call_node(&self, node: &Call<'a>) -> Call<'a> {
        let expr = match &node.expr {
            Expr::GetAttr(g) => Expr::GetAttr(Spanned::new(
                ast::GetAttr {
                    expr: self.expr(&g.expr),
                    name: g.name,
                },
                g.span(),
            )),
            other => self.expr(other),
        };
        Call {
            expr,
            args: self.args(&node.args),
        }
    }

    fn expr(&self, expr: &Expr<'a>) -> Expr<'a> {
        let span = expr.span();
        match expr {
            Expr::Var(v) => variable(v.id, span),
            Expr::Const(c) => constant(c.value.clone(), span),
            Expr::Slice(s) => {
                let bound = |e: &Option<Expr<'a>>| match e {
                    Some(e) => self.expr(e),
                    None => constant(Value::from(()), span),
                };
                let args = vec![
                    self.expr(&s.expr),
                    bound(&s.start),
                    bound(&s.stop),
                    bound(&s.step),
                ];
                call(ops::SLICE, args, span)
            }
            Expr::UnaryOp(u) => {
                // Unlike the other kinds of operator, this one cannot be copied.
                let not = matches!(u.op, ast::UnaryOpKind::Not);
                let op = if not {
                    ast::UnaryOpKind::Not
                } else {
                    ast::UnaryOpKind::Neg
                };
                let node = ast::UnaryOp {
                    op,
                    expr: self.expr(&u.expr),
                };
                Expr::UnaryOp(Spanned::new(node, span))
            }
            Expr::BinOp(b) => self.binary(b, span),
            Expr::Compare(c) => {
                let node = ast::Compare {
                    expr: self.expr(&c.expr),
                    ops: c
                        .ops
                        .iter()
                        .map(|o| ast::CompareOp {
                            op: o.op,
                            expr: self.expr(&o.expr),
                        })
                        .collect(),
                };
                checked(Expr::Compare(Spanned::new(node, span)), span)
            }
            Expr::IfExpr(i) => {
                let node = ast::IfExpr {
                    test_expr: self.expr(&i.test_expr),
                    true_expr: self.expr(&i.true_expr),
                    false_expr: i.false_expr.as_ref().map(|e| self.expr(e)),
                };
                Expr::IfExpr(Spanned::new(node, span))
            }
            Expr::Filter(f) => self.filter(f, span),
            Expr::Test(t) => {
                let node = ast::Test {
                    name: t.name,
                    expr: self.expr(&t.expr),
                    args: self.args(&t.args),
                };
                checked(Expr::Test(Spanned::new(node, span)), span)
            }
            Expr::GetAttr(g) => {
                let node = ast::GetAttr {
                    expr: self.expr(&g.expr),
                    name: g.name,
                };
                Expr::GetAttr(Spanned::new(node, span))
            }
            Expr::GetItem(g) => {
                let node = ast::GetItem {
                    expr: self.expr(&g.expr),
                    subscript_expr: self.expr(&g.subscript_expr),
                };
                Expr::GetItem(Spanned::new(node, span))
            }
            Expr::Call(c) => {
                let fresh = matches!(&c.expr, Expr::GetAttr(g) if FRESH.contains(&g.name));
                let node = Expr::Call(Spanned::new(self.call_node(c), span));
                call(
                    if fresh { ops::FRESH } else { ops::CHECK },
                    vec![node],
                    span,
                )
            }
            Expr::List(l) => {
                let node = ast::List {
                    items: self.exprs(&l.items),
                };
                let node = Expr::List(Spanned::new(node, span));
                // The engine has no tuples; they differ from lists in how they print.
                let start = usize::try_from(span.start_offset).unwrap_or(usize::MAX);
                let tuple = self.source.as_bytes().get(start) == Some(&b'(');
                call(
                    if tuple { ops::TUPLE } else { ops::CHECK },
                    vec![node],
                    span,
                )
            }
            Expr::Map(m) => {
                let node = ast::Map {
                    keys: self.exprs(&m.keys),
                    values: self.exprs(&m.values),
                };
                checked(Expr::Map(Spanned::new(node, span)), span)
            }
        }
    }

    fn filter(&self, node: &Filter<'a>, span: Span) -> Expr<'a> {
        let rewritten = Filter {
            name: node.name,
            expr: node.expr.as_ref().map(|e| self.expr(e)),
            args: self.args(&node.args),
        };
        let filter = Expr::Filter(Spanned::new(rewritten, span));
        // Innermost in a filter block there is no expression: the filter takes what was captured.
        if node.expr.is_none() {
            return filter;
        }
        let fresh = FRESH.contains(&node.name);
        call(
            if fresh { ops::FRESH } else { ops::CHECK },
            vec![filter],
            span,
        )
    }

    fn binary(&self, node: &ast::BinOp<'a>, span: Span) -> Expr<'a> {
        let (left, right) = (self.expr(&node.left), self.expr(&node.right));
        let name = match node.op {
            BinOpKind::Add => ops::ADD,
            BinOpKind::Sub => ops::SUB,
            BinOpKind::Mul => ops::MUL,
            BinOpKind::Div => ops::DIV,
            BinOpKind::FloorDiv => ops::FLOOR_DIV,
            BinOpKind::Rem => ops::REM,
            BinOpKind::Pow => ops::POW,
            BinOpKind::Concat => ops::CONCAT,
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let node = ast::BinOp {
                    op: node.op,
                    left,
                    right,
                };
                return Expr::BinOp(Spanned::new(node, span));
            }
            _ => {
                let node = ast::BinOp {
                    op: node.op,
                    left,
                    right,
                };
                return checked(Expr::BinOp(Spanned::new(node, span)), span);
            }
        };
        call(name, vec![left, right], span)
    }
}

fn variable(id: &str, span: Span) -> Expr<'_> {
    Expr::Var(Spanned::new(ast::Var { id }, span))
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

fn emit(expr: Expr<'_>, span: Span) -> Stmt<'_> {
    Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
}

fn checked(expr: Expr<'_>, span: Span) -> Expr<'_> {
    call(ops::CHECK, vec![expr], span)
}

fn call<'a>(name: &'static str, args: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    let node = Call {
        expr: variable(name, span),
        args: args.into_iter().map(CallArg::Pos).collect(),
    };
    Expr::Call(Spanned::new(node, span))
}
