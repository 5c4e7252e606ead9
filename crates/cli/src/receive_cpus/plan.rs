//! `towpath cores plan`.

use super::Target;
use clap::Args;
use std::fmt::Write;
use towpath_rxcpus::{CpuSet, Machine, Plan, Tree};

/// Shows what would be written for a number of CPUs.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Target,
    /// CPUs to reserve
    #[arg(long, default_value_t = 1, value_name = "N")]
    cpus: u32,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    answer(arguments, &Tree::default())
}

fn answer(arguments: &Arguments, tree: &Tree) -> Result<String, String> {
    let machine = Machine::read(tree);
    let plan = arguments.which.pool(&machine, tree).and_then(|pool| {
        let plan = pool.plan(0, arguments.cpus).map_err(|error| super::with_taken(&error, &pool))?;
        Ok((plan, pool.taken))
    });
    match (plan, arguments.json) {
        (Ok((plan, taken)), true) => json(&plan, &taken).map_err(|error| error.to_string()),
        (Ok((plan, taken)), false) => Ok(text(&plan, &taken)),
        // For a program a reason is an answer, too.
        (Err(why), true) => Ok(crate::json::line(&serde_json::json!({ "plan": null, "why": why }))),
        (Err(why), false) => Err(why),
    }
}

/// The plan, and the commands that do the same.
fn json(plan: &Plan, taken: &CpuSet) -> serde_json::Result<String> {
    let mut value = serde_json::to_value(plan)?;
    value["commands"] = plan.commands().into();
    value["taken"] = taken.list().into();
    Ok(crate::json::line(&value))
}

fn text(plan: &Plan, taken: &CpuSet) -> String {
    let mut text = format!(
        "{}: received on {} by {} ({}); applications on {}\n",
        plan.interface,
        plan.reserved.named(),
        plan.way.sentence(),
        plan.why,
        plan.applications.named()
    );
    if !taken.is_empty() {
        let _ = writeln!(text, "  not reserved: {}: {}", taken.named(), super::TAKEN);
    }
    for knob in &plan.knobs {
        let _ = writeln!(text, "  {:<60} # {}", knob.command(), knob.why);
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::receive_cpus::fake_machine::{Cpus, Fake};
    use clap::Parser;
    use serde_json::Value;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// The plan of such a machine. It is safe: at least one CPU is left, all exist, and none has two owners.
    fn plan(cpus: &Cpus, line: &str) -> Value {
        let fake = Fake::new("plan", cpus);
        let words = ["plan", "--interface", "eth1", "--json"].into_iter().chain(line.split_whitespace());
        let answer = answer(&Line::parse_from(words).arguments, &fake.tree()).unwrap();
        let plan: Value = serde_json::from_str(&answer).unwrap();
        let set = |name: &str| CpuSet::of_list(plan[name].as_str().unwrap()).unwrap();
        if plan["reserved"].is_string() {
            let (reserved, applications, online) = (set("reserved"), set("applications"), cpus.online());
            assert!(!reserved.is_empty() && !applications.is_empty(), "{plan}");
            assert_eq!(
                (applications, reserved.without(&online)),
                (online.without(&reserved), CpuSet::default()),
                "{plan}"
            );
            assert_eq!(reserved.without(&set("taken")), reserved, "{plan}");
            assert!(!reserved.0.contains(online.0.first().unwrap()), "{plan}");
            assert!(plan["commands"].as_array().is_some_and(|commands| !commands.is_empty()), "{plan}");
        } else {
            assert!(plan["plan"].is_null() && plan["why"].as_str().is_some_and(|why| why.len() > 20), "{plan}");
        }
        plan
    }
    fn reserved(cpus: &Cpus, line: &str) -> String {
        let plan = plan(cpus, line);
        plan["reserved"].as_str().unwrap_or_else(|| panic!("{plan}")).to_owned()
    }
    fn why_not(cpus: &Cpus, line: &str) -> String {
        let plan = plan(cpus, line);
        plan["why"].as_str().filter(|_| plan["reserved"].is_null()).unwrap_or_else(|| panic!("{plan}")).to_owned()
    }

    #[test]
    fn every_machine_has_a_plan_that_is_safe_or_the_reason_why_there_is_none() {
        let of = |count: u32| Cpus { count, ..Cpus::default() };
        assert!(why_not(&of(0), "").contains("/sys mounted"), "nothing is known");
        assert!(why_not(&of(1), "").contains("has 1 CPU, and") && why_not(&of(1), "").contains("--force"));
        let none = why_not(&of(1), "--force");
        assert!(none.starts_with("1 CPU cannot be reserved") && none.contains("at least one stays"), "{none}");
        assert!(why_not(&of(2), "").contains("--force"));
        assert_eq!(reserved(&of(2), "--force"), "1");
        assert!(why_not(&of(8), "--cpus 0").contains("0 CPUs"));
        assert!(why_not(&of(8), "--cpus 8").contains("7 of this machine's 8"));
        assert_eq!(reserved(&of(8), "--cpus 7"), "1-7");
        assert_eq!(reserved(&of(64), "--cpus 40"), "1-40");
        assert!(plan(&of(64), "--cpus 40").to_string().contains("1ff,fffffffe"), "masks have words of 32 CPUs");
    }

    #[test]
    fn whole_cores_of_the_devices_node_are_reserved_and_none_that_is_offline_or_isolated() {
        let smt = Cpus { count: 8, threads: 2, ..Cpus::default() };
        assert_eq!(reserved(&smt, "--cpus 2"), "1,5", "a core has two threads, and the first CPU's is left alone");
        assert_eq!(reserved(&Cpus { offline: "3".into(), ..smt.clone() }, "--cpus 4"), "1-2,5-6");
        assert_eq!(reserved(&Cpus { offline: "0".into(), ..smt.clone() }, "--cpus 2"), "2,6", "now 1 is the first");
        let isolated = Cpus { count: 8, isolated: "4-7".into(), ..Cpus::default() };
        assert_eq!(reserved(&isolated, "--cpus 3"), "1-3");
        assert!(why_not(&isolated, "--cpus 4").contains("not to be had: CPUs 4-7: threads of a service"));
        let nodes = Cpus { count: 8, nodes: 2, device_node: Some(1), ..Cpus::default() };
        assert_eq!(reserved(&nodes, "--cpus 2"), "4-5");
        assert_eq!(reserved(&Cpus { device_node: Some(-1), ..nodes.clone() }, "--cpus 2"), "1-2");
        assert_eq!(
            reserved(&Cpus { device_node: Some(7), ..nodes }, "--cpus 2"),
            "1-2",
            "its node has memory and no CPUs"
        );
    }
}
