//! `towpath top`: a service, its programs and its connections, each second.

mod readings;
mod screen;

use self::readings::{Reading, View, view};
use self::screen::Choice;
use crate::locate::{NoService, Which};
use crate::sockets::Filter;
use crate::{exit, fail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use towpath_service::api::{self, Command, Sockets};

/// Time between two readings.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a frozen screen waits for a key before it is drawn again.
const FROZEN: Duration = Duration::from_secs(60);

/// Shows workers, programs, connections and losses, as top(1) shows processes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath top
  towpath top program nginx
  towpath top -c dst 10.0.0.0/8

Keys: tab programs or connections; s another order (bytes, waiting, name); / a filter; space freeze; arrows and page keys
move; q quit. WAITING are bytes that are unread, or that the peer has not acknowledged. Nobody counts the bytes of direct
connections. Filters are those of `towpath sockets`. You see your own programs' sockets; the service's user and root see
all.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Begin with connections
    #[arg(short, long)]
    connections: bool,
    /// Only these, in the words of `ss`
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// Shows them until the user quits.
pub fn run(arguments: &Arguments) -> ExitCode {
    let filter = match Filter::parse(&arguments.filter) {
        Ok(filter) => filter,
        Err(why) => return fail(&why, false, exit::WRONG_LINE),
    };
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why =
            "top needs a terminal; `towpath status --json`, `towpath sockets --json` and `towpath metrics` do not";
        return fail(why, false, exit::FAILED);
    }
    let socket = match arguments.which.find().and_then(|socket| Ok((read(&socket)?, socket))) {
        Ok((_, socket)) => socket,
        Err(error) => return fail(&error.to_string(), false, exit::NO_SERVICE),
    };
    let choice = Choice { connections: arguments.connections, filter: arguments.filter.join(" "), ..Choice::default() };
    let mut top = Top { filter, choice, before: None, now: None };
    let shown = ratatui::try_init().and_then(|mut terminal| {
        let shown = top.show(&mut terminal, &socket);
        ratatui::restore();
        shown
    });
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("terminal: {error}"), false, exit::FAILED),
    }
}

fn read(socket: &Path) -> Result<Reading, NoService> {
    let status = api::ask(socket, Command::Status)?;
    let Sockets { sockets } = api::ask(socket, Command::Sockets)?;
    Ok(Reading { at: Instant::now(), status, sockets })
}

/// What is shown.
struct Top {
    filter: Filter,
    choice: Choice,
    before: Option<Reading>,
    now: Option<Reading>,
}

/// What a key does.
#[derive(Debug, PartialEq)]
enum Next {
    Quit,
    GoOn,
}

impl Top {
    fn show(&mut self, terminal: &mut DefaultTerminal, socket: &Path) -> io::Result<()> {
        let mut due = Instant::now();
        loop {
            if !self.choice.frozen && Instant::now() >= due {
                // A service that begins anew begins with new counters.
                match read(socket) {
                    Ok(reading) => {
                        self.choice.trouble = None;
                        self.before = self.now.replace(reading);
                    }
                    Err(error) => self.choice.trouble = Some(error.to_string()),
                }
                due = Instant::now() + PAUSE;
            }
            let view = self.view();
            terminal.draw(|frame| screen::draw(frame, self.now.as_ref(), &view, &self.choice))?;
            // What is frozen changes by a key alone.
            let left = due.saturating_duration_since(Instant::now()).max(Duration::from_millis(50));
            let left = if self.choice.frozen { FROZEN } else { left };
            if event::poll(left)?
                && let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && self.key(key) == Next::Quit
            {
                return Ok(());
            }
        }
    }

    fn view(&self) -> View {
        let Some(now) = &self.now else { return View::default() };
        let before = self.before.as_ref().unwrap_or(now);
        view(before, now, &self.filter, self.choice.order)
    }

    fn key(&mut self, key: KeyEvent) -> Next {
        let choice = &mut self.choice;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Next::Quit;
        }
        if let Some(typing) = &mut choice.typing {
            match key.code {
                KeyCode::Char(letter) if !control => typing.push(letter),
                KeyCode::Backspace => _ = typing.pop(),
                KeyCode::Esc => choice.typing = None,
                KeyCode::Enter => match Filter::parse(std::slice::from_ref(typing)) {
                    Ok(filter) => {
                        self.filter = filter;
                        choice.filter = choice.typing.take().unwrap_or_default();
                        (choice.trouble, choice.above) = (None, 0);
                    }
                    Err(why) => {
                        choice.trouble = Some(why);
                        choice.typing = None;
                    }
                },
                _ => {}
            }
            return Next::GoOn;
        }
        let page = 10;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Tab => (choice.connections, choice.above) = (!choice.connections, 0),
            KeyCode::Char('s') => choice.order = choice.order.next(),
            KeyCode::Char('/') => choice.typing = Some(choice.filter.clone()),
            KeyCode::Char(' ') => choice.frozen = !choice.frozen,
            KeyCode::Down => choice.above += 1,
            KeyCode::Up => choice.above = choice.above.saturating_sub(1),
            KeyCode::PageDown => choice.above += page,
            KeyCode::PageUp => choice.above = choice.above.saturating_sub(page),
            KeyCode::Home => choice.above = 0,
            _ => {}
        }
        // The last row stays in sight.
        let view = self.view();
        let rows = if self.choice.connections { view.connections.len() } else { view.programs.len() };
        self.choice.above = self.choice.above.min(rows.saturating_sub(1));
        Next::GoOn
    }
}
