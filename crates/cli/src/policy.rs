//! `towpath policy`: the rules for connects and listeners, and the limits of applications.

use crate::complain;
use crate::json;
use crate::locate::{NoService, Which};
use crate::status::short;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use towpath_scaling::counted;
use towpath_service::api::{self, AskError, Command};
use towpath_service::policy::list::{Entry, PROGRAM_IS_NO_BOUNDARY};
use towpath_service::policy::request::{
    DefaultChange, Difference, DifferentSocket, Listing, NumberedRule, PolicyRequest, Replacement, RuleLine, Tested,
};

/// Shows and changes the operator's policy of a running service.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath policy add deny connect user www-data to 10.0.0.0/8 port 25
  towpath policy add limit program nginx rate 1gbit weight 3 connections 10000
  towpath policy insert 1 allow connect program /usr/bin/curl port 8000-8099 congestion dctcp
  towpath policy add deny accept from 192.0.2.0/24 port 80 with reset
  towpath policy test connect user www-data to 10.1.2.3 port 25
  towpath policy diff /etc/towpath/policy
  towpath policy replace /etc/towpath/policy --if-generation 1796000000000003
  towpath policy list --json

RULE is one of
  allow|deny|kernel connect [WHO] [to CIDR] [port N[-M]]
  allow|deny|kernel listen  [WHO] [on CIDR] [port N[-M]]
  allow|deny accept         [WHO] [from CIDR] [on CIDR] [port N[-M]]
  allow|deny|kernel all     [WHO] [port N[-M]]
  join from NAME to NAME    [WHO] on CIDR [port N[-M]]
  limit [WHO] [rate RATE] [weight N] [connections N] [new N]
WHO is any of user NAME|UID, group NAME|GID, program NAME|/PATH, cgroup /PATH; all that is said must be so.
deny: with EPERM|EACCES|ECONNREFUSED, for accept with drop|reset. allow connect|accept: congestion NAME.
The first rule that matches decides; the first limit that matches holds for all it matches together.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// One JSON object
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the rules, how often each has decided, and the default
    #[command(
        visible_alias = "show",
        after_help = "Examples:
  towpath policy list --json
  towpath policy list --rules > before      what `towpath policy replace` takes"
    )]
    List {
        /// Only the rules, as a file has them
        #[arg(long)]
        rules: bool,
    },
    /// Add a rule at the end
    #[command(after_help = "Example:\n  towpath policy add deny connect user www-data port 25")]
    Add {
        /// The rule
        #[arg(required = true, value_name = "RULE")]
        rule: Vec<String>,
    },
    /// Insert a rule before number N
    #[command(after_help = "Example:\n  towpath policy insert 1 allow connect user backup")]
    Insert {
        /// The number of the rule before which to insert
        #[arg(value_name = "N")]
        number: usize,
        /// The rule
        #[arg(required = true, value_name = "RULE")]
        rule: Vec<String>,
    },
    /// Delete a rule by its number or its text
    #[command(
        visible_alias = "del",
        after_help = "Examples:\n  towpath policy delete 3\n  towpath policy delete deny connect user www-data port 25"
    )]
    Delete {
        /// Number, or the rule
        #[arg(required = true, value_name = "N|RULE")]
        rule: Vec<String>,
    },
    /// Set the verdict where no rule matches: allow, deny or kernel
    #[command(after_help = "Example:\n  towpath policy default deny")]
    Default {
        /// allow, deny or kernel
        default: String,
    },
    /// Replace all rules by those of a file, in one step (a rule per line, # comments, and "default deny")
    #[command(after_help = "Examples:
  towpath policy replace /etc/towpath/policy
  towpath policy replace /etc/towpath/policy --dry-run
  towpath policy replace /etc/towpath/policy --if-generation 1796000000000003

The generation is in `towpath status` and `towpath policy list --json`. It grows with each change, and no number comes again
after a restart, unless the clock was set back. The same file twice changes nothing, whatever generation is named.")]
    Replace {
        /// The file; - = standard input
        file: PathBuf,
        /// Only if the rules in force have this generation: nobody has changed them since you looked
        #[arg(long, value_name = "N")]
        if_generation: Option<u64>,
        /// Change nothing, and say what would change, as `towpath policy diff` does
        #[arg(long)]
        dry_run: bool,
    },
    /// Say what would change with the rules of a file
    #[command(after_help = "Examples:
  towpath policy diff /etc/towpath/policy
  towpath policy diff /etc/towpath/policy --json | jq .same

It names rules that would be added and removed, and sockets of now that would be decided otherwise if they began again. Those
go on all the same, whatever rules come: `towpath reset` ends connections.")]
    Diff {
        /// The file; - = standard input
        file: PathBuf,
    },
    /// Delete all rules and allow everything
    #[command(after_help = "Example:\n  towpath policy flush")]
    Flush,
    /// Say which rule would decide an attempt or a join, and why
    #[command(after_help = "Examples:
  towpath policy test connect user alice program /usr/bin/curl to 10.1.2.3 port 25
  towpath policy test listen pid 4711 port 80
  towpath policy test accept program nginx from 192.0.2.1 port 80
  towpath policy --stack red test join from blue to red pid 4711 on 10.1.0.2 port 80")]
    // What is in brackets in the help may be left out; it is no link.
    #[allow(rustdoc::broken_intra_doc_links)]
    Test {
        /// connect|listen|accept [pid N] [WHO] [to|from|on ADDRESS] port N, or
        /// join from NAME to NAME [pid N] [WHO] on ADDRESS port N
        #[arg(required = true, value_name = "ATTEMPT")]
        question: Vec<String>,
    },
}

impl Action {
    fn request(&self) -> Result<PolicyRequest, String> {
        Ok(match self {
            Self::List { .. } => PolicyRequest::List,
            Self::Add { rule } => PolicyRequest::Add { rule: rule.join(" ") },
            Self::Insert { number, rule } => PolicyRequest::Insert { number: *number, rule: rule.join(" ") },
            Self::Delete { rule } => PolicyRequest::Delete { rule: rule.join(" ") },
            Self::Default { default } => PolicyRequest::Default { default: default.clone() },
            Self::Flush => PolicyRequest::Flush,
            Self::Test { question } => PolicyRequest::Test { question: question.join(" ") },
            Self::Diff { file } => PolicyRequest::Diff(replacement(&read(file)?, None)),
            Self::Replace { file, if_generation, dry_run: true } => {
                PolicyRequest::Diff(replacement(&read(file)?, *if_generation))
            }
            Self::Replace { file, if_generation, dry_run: false } => {
                PolicyRequest::Replace(replacement(&read(file)?, *if_generation))
            }
        })
    }
}

fn read(file: &Path) -> Result<String, String> {
    let text =
        if file.as_os_str() == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(file) };
    text.map_err(|error| format!("{}: {error}", file.display()))
}

/// The rules of a file.
fn replacement(text: &str, if_generation: Option<u64>) -> Replacement {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let (mut rules, mut default) = (Vec::new(), "allow".to_owned());
    for line in lines.filter(|line| !line.is_empty()) {
        match line.strip_prefix("default ") {
            Some(word) => default = word.trim().to_owned(),
            None => rules.push(line.to_owned()),
        }
    }
    Replacement { rules, default, if_generation }
}

/// A remark on the rules that a request brings.
fn remark(request: &PolicyRequest) -> Option<String> {
    let rules = match request {
        PolicyRequest::Add { rule } | PolicyRequest::Insert { rule, .. } => std::slice::from_ref(rule),
        PolicyRequest::Replace(new) | PolicyRequest::Diff(new) => &new.rules,
        _ => return None,
    };
    let names_a_program = |rule: &String| rule.parse().is_ok_and(|entry: Entry| entry.names_a_program());
    rules.iter().any(names_a_program).then(|| format!("note: {PROGRAM_IS_NO_BOUNDARY}"))
}

/// Asks the service.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let request = arguments.action.request().map_err(AskError::Refused)?;
    let socket = arguments.which.find()?;
    if let PolicyRequest::Test { .. } = request {
        let tested: Tested = api::ask(&socket, Command::Policy(request))?;
        return Ok(if arguments.json { json::line(&tested) } else { verdict(&tested) });
    }
    let remark = remark(&request);
    let note = || remark.iter().for_each(|remark| complain(remark));
    if let PolicyRequest::Diff(_) = request {
        let difference: Difference = api::ask(&socket, Command::Policy(request))?;
        note();
        return Ok(if arguments.json { json::line(&difference) } else { page(&difference) });
    }
    let listing: Listing = api::ask(&socket, Command::Policy(request))?;
    note();
    Ok(match (&arguments.action, arguments.json) {
        (_, true) => json::line(&listing),
        (Action::List { rules: true }, false) => lines(&listing),
        (Action::List { rules: false }, false) => table(&listing),
        (Action::Replace { .. }, false) => replaced(&listing),
        _ => String::new(),
    })
}

fn table(listing: &Listing) -> String {
    let mut out = String::new();
    for RuleLine { number, rule, hits } in &listing.rules {
        let _ = writeln!(out, "{number:>4} {hits:>10}  {rule}");
    }
    let _ = writeln!(out, "     {:>10}  default {}", listing.default_hits, listing.default);
    out
}

/// The rules, as a file has them.
fn lines(listing: &Listing) -> String {
    let mut out: String = listing.rules.iter().map(|line| format!("{}\n", line.rule)).collect();
    let _ = writeln!(out, "default {}", listing.default);
    out
}

/// What a replacement has done.
fn replaced(listing: &Listing) -> String {
    let Listing { rules, generation, hash, changed, .. } = listing;
    let what = if *changed == Some(false) { "nothing changed" } else { "replaced" };
    format!("{what}: {}, generation {generation}, hash {}\n", counted(rules.len(), "rule"), short(hash))
}

/// What a file would change.
fn page(difference: &Difference) -> String {
    let Difference { generation, hash, new_hash, same, added, removed, reordered, default, sockets, more } = difference;
    if *same {
        return format!("the same rules: generation {generation}, hash {}\n", short(hash));
    }
    let mut out = format!("generation {generation}, hash {}; the file has hash {}\n", short(hash), short(new_hash));
    for (sign, rules) in [('-', removed), ('+', added)] {
        for NumberedRule { number, rule } in rules {
            let _ = writeln!(out, "{sign}{number:>4}  {rule}");
        }
    }
    if *reordered {
        out.push_str("rules that stay are in another order\n");
    }
    if let Some(DefaultChange { from, to }) = default {
        let _ = writeln!(out, "default {from}, then {to}");
    }
    if sockets.is_empty() {
        out.push_str("no socket of now would be decided otherwise\n");
        return out;
    }
    let _ = writeln!(out, "{} of now would be decided otherwise:", counted(sockets.len() + more, "socket"));
    for DifferentSocket { state, local, peer, program, pid, uid, before, after, rule } in sockets {
        let by = rule.as_ref().map_or_else(|| "the default".to_owned(), |rule| format!("rule {}", rule.number));
        let peer = if state == "LISTEN" { String::new() } else { format!(" {peer}") };
        let _ =
            writeln!(out, "  {state} {local}{peer} {program} (pid {pid}, uid {uid}): {before}, then {after} by {by}");
    }
    if *more > 0 {
        let _ = writeln!(out, "  and {more} more");
    }
    out
}

fn verdict(tested: &Tested) -> String {
    let with = tested.with.as_ref().map(|with| format!(" with {with}")).unwrap_or_default();
    let mut out = format!("{}{with}: {}\n", tested.verdict, tested.why);
    if let Some(RuleLine { number, rule, .. }) = &tested.limit {
        let _ = writeln!(out, "under rule {number}: {rule}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_rule_per_line() {
        let text = "# mail\ndeny connect port 25   # from anybody\n\n default deny\nlimit program nginx rate 1gbit\n";
        let rules = vec!["deny connect port 25".to_owned(), "limit program nginx rate 1gbit".to_owned()];
        assert_eq!(replacement(text, None), Replacement { rules, default: "deny".into(), if_generation: None });
        let nothing = Replacement { rules: vec![], default: "allow".into(), if_generation: Some(7) };
        assert_eq!(replacement("", Some(7)), nothing);
    }

    #[test]
    fn a_rule_that_names_a_program_is_said_to_be_no_boundary() {
        let add = |rule: &str| remark(&PolicyRequest::Add { rule: rule.into() });
        assert!(
            add("allow connect program /usr/bin/curl user 1000").is_some_and(|text| text.contains("confines nobody"))
        );
        assert!(add("limit program nginx rate 1gbit").is_some());
        assert_eq!(add("deny connect user 1000 port 25"), None);
        assert_eq!(add("no rule program"), None, "the service says what is wrong with it");
        let insert = PolicyRequest::Insert { number: 1, rule: "deny all program nc".into() };
        assert!(remark(&insert).is_some());
        let file = || replacement("deny all port 25\nallow all program nc", None);
        assert!(remark(&PolicyRequest::Replace(file())).is_some() && remark(&PolicyRequest::Diff(file())).is_some());
        assert_eq!(remark(&PolicyRequest::Delete { rule: "deny all program nc".into() }), None);
    }

    #[test]
    fn the_list_is_numbered_and_counted() {
        let line = |number, rule: &str, hits| RuleLine { number, rule: rule.into(), hits };
        let rules = vec![line(1, "deny connect port 25", 7), line(2, "limit user 1000 rate 1mbit", 0)];
        let (generation, hash) = (5, "0123456789abcdef".to_owned());
        let listing = Listing { rules, default: "allow".into(), default_hits: 12, generation, hash, changed: None };
        let expected = "   1          7  deny connect port 25\n   2          0  limit user 1000 rate 1mbit\n             12  default allow\n";
        assert_eq!(table(&listing), expected);
        let file = lines(&listing);
        assert_eq!(file, "deny connect port 25\nlimit user 1000 rate 1mbit\ndefault allow\n");
        assert_eq!(replacement(&file, None).rules.len(), 2, "it can be read again");
        let done = |changed| replaced(&Listing { changed: Some(changed), ..listing.clone() });
        assert_eq!(done(true), "replaced: 2 rules, generation 5, hash 0123456789ab\n");
        assert_eq!(done(false), "nothing changed: 2 rules, generation 5, hash 0123456789ab\n");
    }

    #[test]
    fn a_difference_names_rules_and_sockets() {
        let rule = |number, rule: &str| NumberedRule { number, rule: rule.into() };
        let difference = Difference {
            generation: 5,
            hash: "a".repeat(64),
            new_hash: "b".repeat(64),
            same: false,
            added: vec![rule(2, "deny connect port 26")],
            removed: vec![rule(1, "deny connect port 25")],
            reordered: true,
            default: Some(DefaultChange { from: "allow".into(), to: "deny".into() }),
            sockets: vec![DifferentSocket {
                state: "ESTAB".into(),
                local: ([10, 0, 0, 1], 5000).into(),
                peer: ([10, 0, 0, 2], 26).into(),
                program: "redis".into(),
                pid: 7,
                uid: 0,
                before: "allow".into(),
                after: "deny with EPERM".into(),
                rule: Some(rule(2, "deny connect port 26")),
            }],
            more: 3,
        };
        let expected = "generation 5, hash aaaaaaaaaaaa; the file has hash bbbbbbbbbbbb
-   1  deny connect port 25
+   2  deny connect port 26
rules that stay are in another order
default allow, then deny
4 sockets of now would be decided otherwise:
  ESTAB 10.0.0.1:5000 10.0.0.2:26 redis (pid 7, uid 0): allow, then deny with EPERM by rule 2
  and 3 more
";
        assert_eq!(page(&difference), expected);
        let none = Difference { sockets: Vec::new(), more: 0, ..difference.clone() };
        assert!(page(&none).ends_with("no socket of now would be decided otherwise\n"));
        let same = Difference { same: true, ..difference };
        assert_eq!(page(&same), "the same rules: generation 5, hash aaaaaaaaaaaa\n");
    }
}
