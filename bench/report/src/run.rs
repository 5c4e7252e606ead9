//! A run of all benchmarks, as it is kept: the machine, the settings, and the rows of each step.

use crate::{SCHEMA, SCHEMA_KEY};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Digits that are kept of a number. More would be noise, and make recorded runs large.
const DIGITS: usize = 5;

/// All that a report is made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// When it began.
    pub date: String,
    /// What was measured. `-dirty` behind it: with changes that are in no commit.
    pub commit: String,
    /// Names and values, as a reader sees them.
    pub machine: Vec<(String, String)>,
    /// What Linux and the programs were set to.
    pub settings: Vec<(String, String)>,
    /// In the order in which they ran.
    pub steps: Vec<Step>,
}

/// One command of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// `echo`, `direct` and so on.
    pub benchmark: String,
    /// What measures it alone.
    pub command: String,
    /// Share of the machine's CPU time that its hypervisor gave to others meanwhile.
    pub steal: f64,
    /// Seconds that it took.
    pub took_s: f64,
    /// Where the rows come from, if they are older than the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// Why there are no rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Those that the command has printed. The names of the ways are under `way`.
    pub rows: Vec<Map<String, Value>>,
}

impl Step {
    /// Takes rows as a benchmark prints them, one JSON object per line.
    pub fn take(&mut self, lines: &str) -> Result<(), serde_json::Error> {
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let mut row: Map<String, Value> = serde_json::from_str(line)?;
            // The run has it once.
            row.remove(SCHEMA_KEY);
            // Each benchmark has a word of its own for what it compares.
            if let Some(way) = ["stack", "arm"].iter().find_map(|name| row.remove(*name)) {
                row.insert("way".to_owned(), way);
            }
            let mut row = Value::Object(row);
            shorten(&mut row);
            if let Value::Object(row) = row {
                self.rows.push(row);
            }
        }
        Ok(())
    }
}

/// The names of two facts of the machine that a report judges.
pub const CPUS: &str = "CPUs";
/// See [`CPUS`].
pub const LOAD: &str = "load average when it began";

impl Run {
    /// A warning, if more programs wanted to run when it began than there are CPUs.
    pub fn warning(&self) -> Option<String> {
        let number = |name: &str| {
            let (_, value) = self.machine.iter().find(|(known, _)| known == name)?;
            value.split(' ').next()?.parse::<f64>().ok()
        };
        let (cpus, load) = (number(CPUS)?, number(LOAD)?);
        let text = "The load average was higher than the number of CPUs when the run began: other programs may have taken \
            part. Do not trust its timings.";
        (load > cpus).then(|| text.to_owned())
    }

    /// Reads what [`Run::text`] has written.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// As JSON with a line for each row, so that two runs can be compared.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let json = |value: &Value| serde_json::to_string(value);
        let mut head = serde_json::to_value(Self { steps: Vec::new(), ..self.clone() })?;
        if let Value::Object(head) = &mut head {
            head.remove("steps");
            head.insert(SCHEMA_KEY.to_owned(), SCHEMA.into());
        }
        let head = json(&head)?;
        let mut steps = Vec::new();
        for step in &self.steps {
            let mut about = serde_json::to_value(Step { rows: Vec::new(), ..step.clone() })?;
            if let Value::Object(about) = &mut about {
                about.remove("rows");
            }
            let rows: Result<Vec<String>, _> = step.rows.iter().map(|row| json(&Value::Object(row.clone()))).collect();
            let about = json(&about)?;
            let rows = rows?.join(",\n");
            steps.push(format!("{},\"rows\":[\n{rows}]}}", about.strip_suffix('}').unwrap_or(&about)));
        }
        let head = head.strip_suffix('}').unwrap_or(&head);
        Ok(format!("{head},\"steps\":[\n{}]}}\n", steps.join(",\n")))
    }
}

/// Cuts all numbers to the digits that are kept.
fn shorten(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let short = number.as_f64().and_then(|full| format!("{full:.*e}", DIGITS - 1).parse::<f64>().ok());
            if let Some(number) = short.and_then(serde_json::Number::from_f64) {
                *value = Value::Number(number);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_busy_machine_is_warned_of() {
        let run = |load: &str| {
            let fact = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            Run { machine: vec![fact(CPUS, "2"), fact(LOAD, load)], ..Run::default() }
        };
        assert!(run("2.99 6.12 5.66").warning().is_some());
        assert_eq!((run("1.50 6.12 5.66").warning(), Run::default().warning()), (None, None));
    }

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let mut step = Step { benchmark: "echo".to_owned(), steal: 0.25, ..Step::default() };
        step.take(
            "{\"stack\":\"linux\",\"x\":1.23456789,\"rounds\":[{\"x\":123456.789}]}\n\n{\"arm\":\"towpath 1\"}\n",
        )
        .unwrap();
        assert_eq!(step.rows[0]["way"], "linux", "one word for what is compared");
        assert_eq!((&step.rows[0]["x"], &step.rows[0]["rounds"][0]["x"]), (&1.2346.into(), &123_460.0.into()));
        let machine = vec![("CPU".to_owned(), "any".to_owned())];
        let run = Run { date: "today".to_owned(), machine, steps: vec![step.clone(), step], ..Run::default() };
        let text = run.text().unwrap();
        assert_eq!(Run::read(&text).unwrap(), run);
        assert_eq!(text.lines().count(), 2 * 3 + 1, "{text}");
        assert!(Step::default().take("no JSON").is_err());
    }
}
