//! `towpath cores plan`.

use super::Which;
use clap::Args;
use std::fmt::Write;
use towpath_anp::{Machine, Plan, Tree};

/// Shows what would be written for a number of CPUs.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// CPUs to reserve
    #[arg(long, default_value_t = 1, value_name = "N")]
    cpus: u32,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let tree = Tree::default();
    let machine = Machine::read(&tree);
    let plan = arguments
        .which
        .pool(&machine, &tree)
        .and_then(|pool| pool.plan(0, arguments.cpus).map_err(|error| error.to_string()));
    match (plan, arguments.json) {
        (Ok(plan), true) => serde_json::to_string(&plan).map(|text| text + "\n").map_err(|error| error.to_string()),
        (Ok(plan), false) => Ok(text(&plan)),
        // Also a reason is an answer.
        (Err(why), true) => Ok(serde_json::json!({ "plan": null, "why": why }).to_string() + "\n"),
        (Err(why), false) => Err(why),
    }
}

fn text(plan: &Plan) -> String {
    let way = if plan.way == "irq" { "its interrupts" } else { "software (RPS)" };
    let mut text = format!(
        "{}: received on CPUs {} by {way}; applications on {}\n",
        plan.interface, plan.reserved, plan.applications
    );
    for knob in &plan.knobs {
        let _ = writeln!(text, "  {:<60} # {}", knob.command(), knob.why);
    }
    text
}
