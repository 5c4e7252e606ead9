//! The pages of a run: whole, self-contained, and those that are committed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use towpath_bench_report::{Run, Step, html, markdown};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recorded() -> Run {
    Run::read(&std::fs::read_to_string(root().join("bench/recorded/run.json")).unwrap()).unwrap()
}

/// Names of the elements that are open at the end, with every end checked against its beginning.
fn open_elements(page: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    for part in page.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "a bare > in {text}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "an element ends that is not the last");
        } else if !tag.ends_with('/') && !tag.starts_with('!') {
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes in {tag}");
            open.push(tag.split(' ').next().unwrap().to_owned());
        }
    }
    open
}

#[test]
fn a_page_is_well_formed_and_needs_nothing_else() {
    let mut run = recorded();
    run.machine.push(("<script>".to_owned(), "a & b \"c\"".to_owned()));
    run.steps.push(Step { error: Some("<b>\"no\" & none".to_owned()), ..Step::default() });
    for run in [run, Run::default()] {
        let page = html::page(&run);
        assert_eq!(open_elements(&page), Vec::<String>::new());
        for foreign in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(foreign), "{foreign} in the page");
        }
        for entity in page.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)), "&{entity:.20}");
        }
    }
}

#[test]
fn every_target_stands_in_both_pages_met_or_not() {
    for run in [recorded(), Run::default()] {
        let (page, text) = (html::page(&run), markdown::page(&run));
        for figure in towpath_bench_report::figures::all() {
            assert!(page.contains(&figure.what.replace('&', "&amp;")), "{} in the report", figure.what);
            assert!(text.contains(figure.what), "{} in the page", figure.what);
        }
    }
}

#[test]
fn the_committed_page_is_what_the_recorded_run_says() {
    let committed = std::fs::read_to_string(root().join("docs/performance.md")).unwrap();
    assert!(
        committed == markdown::page(&recorded()),
        "docs/performance.md is stale: towpath bench report --from bench/recorded --performance docs/performance.md"
    );
}
