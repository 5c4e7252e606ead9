//! Finds the expressions, functions and arms that a list of changes is about, and how each is written with its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::render::{Piece, Site};
use crate::{Change, Position};

const BY_THE_COMPILER: &str = "only the compiler computes it";
const OPAQUE: &str = "the first value that the function returns decides its type";
const LET_CHAIN: &str = "it does not compile: a `let` is an operand";

/// What is known after the search.
#[derive(Default)]
pub struct Found {
    pub sites: Vec<Site>,
    pub seen: BTreeSet<u32>,
    pub left: BTreeMap<u32, &'static str>,
    pub in_const_fn: Vec<u32>,
}

struct Search<'a> {
    source: &'a str,
    /// By kind and first byte.
    changes: BTreeMap<(&'a str, usize), Vec<&'a Change>>,
    found: Found,
    /// Depth of constants, array lengths and the like.
    constant: usize,
    const_fn: bool,
}

/// The byte of a position.
fn byte(source: &str, lines: &[usize], position: Position) -> usize {
    let line = &source[lines[position.line - 1]..];
    lines[position.line - 1] + line.char_indices().nth(position.column - 1).map_or(line.len(), |(at, _)| at)
}

/// The sites of a file.
pub fn sites(source: &str, changes: &[&Change]) -> Result<Found, syn::Error> {
    let lines: Vec<usize> = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let mut by_place: BTreeMap<(&str, usize), Vec<&Change>> = BTreeMap::new();
    for change in changes {
        debug_assert!(byte(source, &lines, change.span.end) >= byte(source, &lines, change.span.start));
        by_place.entry((&change.genre, byte(source, &lines, change.span.start))).or_default().push(change);
    }
    let file = syn::parse_file(source)?;
    let mut search = Search { source, changes: by_place, found: Found::default(), constant: 0, const_fn: false };
    search.visit_file(&file);
    Ok(search.found)
}

fn text(text: impl Into<String>) -> Piece {
    Piece::Text(text.into())
}

fn range(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

/// Is an operand of a chain of `&&` a `let`?
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) if matches!(binary.op, syn::BinOp::And(_)) => {
            has_let(&binary.left) || has_let(&binary.right)
        }
        _ => false,
    }
}

/// `A if on(1) else if on(2) B else C`, as pieces: the changes first, then what stands in the file.
fn choice(changes: &[(u32, String)], usual: Vec<Piece>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (number, changed) in changes {
        pieces.push(Piece::Change(*number, format!("\nif ::mutant_point::on({number}) {{ {changed} }} else ")));
    }
    pieces.push(text("\n{ "));
    pieces.extend(usual);
    pieces.push(text(" }"));
    pieces
}

impl<'a> Search<'a> {
    /// The changes of this kind that begin here and are wanted. Empty if they cannot be chosen at run time.
    fn wanted(&mut self, genre: &'static str, at: usize) -> Vec<&'a Change> {
        let changes = self.changes.get(&(genre, at)).cloned().unwrap_or_default();
        for change in &changes {
            self.found.seen.insert(change.number);
            if self.constant > 0 {
                self.found.left.insert(change.number, BY_THE_COMPILER);
            } else if self.const_fn {
                self.found.in_const_fn.push(change.number);
            }
        }
        if self.constant > 0 { Vec::new() } else { changes.into_iter().filter(|change| !change.drop).collect() }
    }

    fn site(&mut self, range: Range<usize>, pieces: Vec<Piece>) {
        self.found.sites.push(Site { range, pieces });
    }

    fn inside_constant(&mut self, visit: impl FnOnce(&mut Self)) {
        self.constant += 1;
        visit(self);
        self.constant -= 1;
    }

    fn function(&mut self, sig: &syn::Signature, block: &syn::Block, visit: impl FnOnce(&mut Self)) {
        let (outer_const, outer_depth) =
            (std::mem::replace(&mut self.const_fn, sig.constness.is_some()), std::mem::replace(&mut self.constant, 0));
        let open = block.brace_token.span.open().byte_range();
        // The list names the first byte of the body, with its brace or without.
        let first = block.stmts.first().map_or(open.end, |statement| range(statement).start);
        let starts = BTreeSet::from([open.start, open.end, first]);
        let mut changes: Vec<_> = starts.into_iter().flat_map(|at| self.wanted("FnValue", at)).collect();
        if matches!(&sig.output, syn::ReturnType::Type(_, of) if matches!(**of, syn::Type::ImplTrait(_))) {
            self.found.left.extend(changes.drain(..).map(|change| (change.number, OPAQUE)));
        }
        let pieces: Vec<Piece> = changes
            .into_iter()
            .map(|c| {
                let line = format!("\nif ::mutant_point::on({}) {{ return {}; }}\n", c.number, c.replacement);
                Piece::Change(c.number, line)
            })
            .collect();
        if !pieces.is_empty() {
            self.site(open.end..open.end, pieces);
        }
        visit(self);
        (self.const_fn, self.constant) = (outer_const, outer_depth);
    }

    /// A binary expression: each operand is computed once, in the usual order.
    fn binary(&mut self, binary: &syn::ExprBinary, changes: &[&Change]) {
        use syn::BinOp;
        let operator = &self.source[range(&binary.op)];
        let (left, right) = (Piece::Source(range(&binary.left)), Piece::Source(range(&binary.right)));
        let each = |form: &dyn Fn(&str) -> String| {
            changes.iter().map(|c| (c.number, form(&c.replacement))).collect::<Vec<_>>()
        };
        let pieces = match binary.op {
            // The other one of the two: the right operand is computed where it was not, and not where it was.
            BinOp::And(_) | BinOp::Or(_) => {
                let [change] = changes else { return };
                let usual = if matches!(binary.op, BinOp::And(_)) { "!=" } else { "==" };
                vec![
                    text("(match ("),
                    left,
                    text(") { l =>\nif l "),
                    text(usual),
                    Piece::Change(change.number, format!(" ::mutant_point::on({})", change.number)),
                    text(" { "),
                    right,
                    text(" } else { l } })"),
                ]
            }
            // Comparisons take references, so that nothing moves.
            BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) => {
                let form = |operator: &str| format!("*l {operator} *r");
                let mut pieces = vec![text("(match (&("), left, text("), &("), right, text(")) { (l, r) => ")];
                pieces.extend(choice(&each(&form), vec![text(form(operator))]));
                pieces.push(text(" })"));
                pieces
            }
            _ if operator.ends_with('=') => {
                let form = |operator: &str| format!("*l {operator} r");
                let mut pieces = vec![text("(match ("), right, text(") { r => match &mut ("), left, text(") { l => ")];
                pieces.extend(choice(&each(&form), vec![text(form(operator))]));
                pieces.push(text(" } })"));
                pieces
            }
            _ => {
                let form = |operator: &str| format!("l {operator} r");
                let mut pieces = vec![text("(match (("), left, text("), ("), right, text(")) { (l, r) => ")];
                pieces.extend(choice(&each(&form), vec![text(form(operator))]));
                pieces.push(text(" })"));
                pieces
            }
        };
        self.site(range(binary), pieces);
    }
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, |search| visit::visit_item_fn(search, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, |search| visit::visit_impl_item_fn(search, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        match &item.default {
            Some(block) => self.function(&item.sig, block, |search| visit::visit_trait_item_fn(search, item)),
            None => visit::visit_trait_item_fn(self, item),
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.inside_constant(|search| visit::visit_item_const(search, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.inside_constant(|search| visit::visit_impl_item_const(search, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.inside_constant(|search| visit::visit_trait_item_const(search, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.inside_constant(|search| visit::visit_item_static(search, item));
    }

    fn visit_variant(&mut self, item: &'ast syn::Variant) {
        self.inside_constant(|search| visit::visit_variant(search, item));
    }

    fn visit_type_array(&mut self, item: &'ast syn::TypeArray) {
        self.inside_constant(|search| visit::visit_type_array(search, item));
    }

    fn visit_generic_argument(&mut self, item: &'ast syn::GenericArgument) {
        self.inside_constant(|search| visit::visit_generic_argument(search, item));
    }

    fn visit_expr_const(&mut self, item: &'ast syn::ExprConst) {
        self.inside_constant(|search| visit::visit_expr_const(search, item));
    }

    fn visit_expr_repeat(&mut self, item: &'ast syn::ExprRepeat) {
        self.visit_expr(&item.expr);
        self.inside_constant(|search| search.visit_expr(&item.len));
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let changes = self.wanted("BinaryOperator", range(&binary.op).start);
        if has_let(&binary.left) || has_let(&binary.right) {
            self.found.left.extend(changes.iter().map(|change| (change.number, LET_CHAIN)));
        } else if !changes.is_empty() {
            self.binary(binary, &changes);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let changes = self.wanted("UnaryOperator", range(unary).start);
        if let Some(change) = changes.first() {
            let mut pieces = vec![text("(match ("), Piece::Source(range(&unary.expr)), text(") { v => ")];
            pieces
                .extend(choice(&[(change.number, "v".into())], vec![text(&self.source[range(&unary.op)]), text("v")]));
            pieces.push(text(" })"));
            self.site(range(unary), pieces);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        let mut numbers = Vec::new();
        for arm in &expression.arms {
            let gone = self.wanted("MatchArm", range(arm).start).first().map(|change| change.number);
            numbers.extend(gone);
            let Some((_, guard)) = &arm.guard else {
                if let Some(number) = gone {
                    let end = range(&arm.pat).end;
                    self.site(end..end, vec![Piece::Change(number, format!(" if !::mutant_point::on({number})"))]);
                }
                continue;
            };
            let guards = self.wanted("MatchArmGuard", range(&**guard).start);
            if gone.is_none() && guards.is_empty() {
                continue;
            }
            let mut pieces = Vec::new();
            if let Some(number) = gone {
                pieces.push(Piece::Change(number, format!("!::mutant_point::on({number}) && ")));
            }
            pieces.push(text("("));
            let each: Vec<_> = guards.iter().map(|c| (c.number, c.replacement.clone())).collect();
            pieces.extend(choice(&each, vec![Piece::Source(range(&**guard))]));
            pieces.push(text(")"));
            self.site(range(&**guard), pieces);
        }
        if !numbers.is_empty() {
            // The compiler's error about missing arms is about the whole expression.
            let whole = range(expression);
            let mut pieces: Vec<Piece> =
                numbers.into_iter().map(|number| Piece::Change(number, String::new())).collect();
            pieces.push(Piece::Source(whole.clone()));
            self.site(whole, pieces);
        }
        visit::visit_expr_match(self, expression);
    }

    fn visit_expr_struct(&mut self, expression: &'ast syn::ExprStruct) {
        if let Some(rest) = &expression.rest {
            for field in &expression.fields {
                let changes = self.wanted("StructField", range(field).start);
                let Some(change) = changes.first() else { continue };
                let (name, path) = (&self.source[range(&field.member)], &self.source[range(&expression.path)]);
                let of_rest = format!("let rest: {path} = {}; rest.{name}", &self.source[range(&**rest)]);
                let mut pieces = vec![text(format!("{name}: "))];
                pieces.extend(choice(&[(change.number, of_rest)], vec![Piece::Source(range(&field.expr))]));
                self.site(range(field), pieces);
            }
        }
        visit::visit_expr_struct(self, expression);
    }
}
