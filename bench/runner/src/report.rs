//! The pages of a run that was kept.

use std::io;
use std::path::{Path, PathBuf};
use towpath_bench_report::{Run, html, markdown};

/// The file of a run, in its directory.
pub const RUN: &str = "run.json";
/// Its page.
pub const PAGE: &str = "report.html";

/// Arguments of `towpath bench report`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  towpath bench report\n  \
    towpath bench report --from bench/recorded --performance docs/performance.md")]
pub struct Options {
    /// The directory of the run's `run.json`
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    from: PathBuf,
    /// The page [default: report.html in the run's directory, or none with --performance]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write docs/performance.md, which says what limits each figure
    #[arg(long, value_name = "FILE")]
    performance: Option<PathBuf>,
}

/// Reads the run and writes its pages.
pub fn run(options: &Options) -> io::Result<()> {
    let path = options.from.join(RUN);
    let told = |error: String| io::Error::other(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| told(error.to_string()))?;
    let run = Run::read(&text).map_err(|error| told(error.to_string()))?;
    if let Some(file) = &options.performance {
        std::fs::write(file, markdown::page(&run))?;
        println!("{}", file.display());
    }
    if options.performance.is_none() || options.out.is_some() {
        let file = options.out.clone().unwrap_or_else(|| options.from.join(PAGE));
        write_page(&run, &file)?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Writes the page of a run.
pub fn write_page(run: &Run, file: &Path) -> io::Result<()> {
    std::fs::write(file, html::page(run))
}
