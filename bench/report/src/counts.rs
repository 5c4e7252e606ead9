//! Counted instructions beside the recorded ones. They hardly depend on the machine, so a growth is a fault.

use crate::run::Step;
use serde_json::{Map, Value, json};

/// How much more than recorded a count may be. Stages, engine, floods and modules run step by step in one thread, so two runs are equal.
/// In the others the peer sleeps more or less often. `scripts/test-instructions` judges by the same.
fn most(name: &str, recorded: f64) -> f64 {
    let is_stepped = ["stages_", "engine_", "flood_", "module_", "capture_"].iter().any(|kind| name.starts_with(kind));
    recorded * if is_stepped { 1.02 } else { 1.05 }
}

/// The counts that are higher than they may be, each as a sentence. A recorded count that is missing is one, too.
pub fn missed(recorded: &Map<String, Value>, counted: &Map<String, Value>) -> Vec<String> {
    let number = |counts: &Map<String, Value>, name: &str| counts.get(name).and_then(Value::as_f64);
    let judge = |name: &String| {
        let then = number(recorded, name)?;
        match number(counted, name) {
            None => Some(format!("instructions: {name} was not counted (recorded {then:.1})")),
            Some(now) if now > most(name, then) => Some(format!(
                "instructions: {name} is {now:.1}, recorded {then:.1}, at most {:.1} is tolerated",
                most(name, then)
            )),
            Some(_) => None,
        }
    };
    recorded.keys().filter_map(judge).collect()
}

/// The least of two counts of each: one differs from another by how often the peer sleeps, and only growth shows in all.
pub fn least(a: &Map<String, Value>, b: &Map<String, Value>) -> Map<String, Value> {
    let less = |(name, value): (&String, &Value)| {
        let other = b.get(name).filter(|other| other.as_f64() < value.as_f64());
        (name.clone(), other.unwrap_or(value).clone())
    };
    a.iter().map(less).collect()
}

/// Keeps the counts as rows.
pub fn keep(step: &mut Step, counted: &Map<String, Value>) {
    for (name, value) in counted {
        let fields = [("shape", json!(name)), ("way", json!("towpath")), ("instructions", value.clone())];
        step.rows.push(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn counts(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_count_may_be_a_little_higher_and_not_much() {
        let recorded = counts(r#"{"stages_1":100.0,"library":100.0,"send":10.0}"#);
        let missed = |text: &str| missed(&recorded, &counts(text));
        assert!(missed(r#"{"stages_1":102.0,"library":105.0,"send":1.0,"new":7.0}"#).is_empty());
        let said = missed(r#"{"stages_1":102.1,"library":105.0}"#);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("send was not counted") && said[1].contains("stages_1 is 102.1"), "{said:?}");
        assert_eq!(missed(r#"{"stages_1":1,"library":105.1,"send":1}"#).len(), 1);
    }

    #[test]
    fn the_least_of_two_counts_is_kept() {
        let least = least(&counts(r#"{"a":3.0,"b":1.0}"#), &counts(r#"{"a":2.0,"b":4.0}"#));
        assert_eq!(least, counts(r#"{"a":2.0,"b":1.0}"#));
        let mut step = Step::default();
        keep(&mut step, &least);
        assert_eq!((&step.rows[0]["shape"], &step.rows[0]["instructions"]), (&json!("a"), &json!(2.0)));
    }
}
