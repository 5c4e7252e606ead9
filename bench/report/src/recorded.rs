//! Rows of benchmarks that take too long for every run: those of the last recorded one, as figures look them up.

use crate::figures;
use crate::run::Step;
use serde_json::{Map, Value, json};

/// The recorded benchmarks: the name in the report, what follows `towpath bench`, and the file.
pub const FILES: [(&str, &str, &str); 5] = [
    ("loss", "loss", "loss.json"),
    ("fairness", "fairness --only relay", "fairness-relay.json"),
    ("incast", "incast --only relay", "incast-relay.json"),
    ("anp", "anp", "anp.json"),
    ("throughput of 16 CPUs", "throughput", "throughput.json"),
];
/// Fields that are too long to keep, and that no figure uses.
const LONG: [&str; 2] = ["chosen", "curve"];

/// Takes the rows of a file that figures look up.
pub fn take(step: &mut Step, lines: &str) -> Result<(), serde_json::Error> {
    step.take(lines)?;
    for row in &mut step.rows {
        LONG.iter().for_each(|name| drop(row.remove(*name)));
        if let Some(shape) = shape(&step.benchmark, row) {
            row.insert("shape".to_owned(), json!(shape));
        }
        if row.get("way") == Some(&json!("symmetric")) {
            row.insert("way".to_owned(), json!("linux, all CPUs alike"));
        }
    }
    let benchmark = step.benchmark.as_str();
    let wanted = |shape: &Value| figures::all().any(|figure| figure.benchmark == benchmark && *shape == figure.shape);
    step.rows.retain(|row| row.get("shape").is_some_and(wanted));
    Ok(())
}

/// What is measured, in one word, where the rows say it in several fields.
fn shape(benchmark: &str, row: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| row.get(key)?.as_str();
    let count = |key: &str| row.get(key)?.as_u64();
    let ecn = || Some(if row.get("ecn")?.as_bool()? { "-ecn" } else { "" });
    match benchmark {
        "fairness" => Some(format!("{}-{}{}", count("flows")?, text("cc")?, ecn()?)),
        "incast" => Some(format!("{}-{}{}", count("fan_in")?, text("cc")?, ecn()?)),
        "anp" => Some(format!("{} {}", text("server")?, text("load")?.split(':').next()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_benchmark_has_its_shapes() {
        let shapes = |benchmark: &str, line: &str| {
            let mut step = Step { benchmark: benchmark.to_owned(), ..Step::default() };
            take(&mut step, line).unwrap();
            step.rows.remove(0)
        };
        let row = shapes("fairness", r#"{"stack":"linux","cc":"cubic","ecn":false,"flows":50}"#);
        assert_eq!((&row["shape"], &row["way"]), (&json!("50-cubic"), &json!("linux")));
        let row = shapes("incast", r#"{"stack":"towpath","cc":"cubic","ecn":true,"fan_in":64}"#);
        assert_eq!(row["shape"], "64-cubic-ecn");
        let row = shapes("anp", r#"{"server":"loops","load":"open:48392","arm":"symmetric","chosen":[{"s":1}]}"#);
        assert_eq!((&row["shape"], &row["way"]), (&json!("loops open"), &json!("linux, all CPUs alike")));
        assert!(!row.contains_key("chosen"));
        assert_eq!(shapes("loss", r#"{"shape":"clean","stack":"linux"}"#)["shape"], "clean");
        let mut unused = Step { benchmark: "loss".to_owned(), ..Step::default() };
        take(&mut unused, r#"{"shape":"of no figure","stack":"linux"}"#).unwrap();
        assert!(unused.rows.is_empty());
    }
}
