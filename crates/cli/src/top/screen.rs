//! How it looks.

use super::readings::{ConnectionRow, Order, ProgramRow, Rates, Reading, View};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

/// Most lines of workers.
const MOST_WORKERS: usize = 16;
/// Characters of a worker's bar.
const BAR: usize = 30;

/// What the user has chosen.
#[derive(Debug, Default)]
pub struct Choice {
    /// The order of rows.
    pub order: Order,
    /// Connections and not programs.
    pub connections: bool,
    /// Nothing changes until he says so.
    pub frozen: bool,
    /// Rows above the first that is shown.
    pub above: usize,
    /// The filter while it is typed.
    pub typing: Option<String>,
    /// The filter in force, as it was typed.
    pub filter: String,
    /// What is wrong.
    pub trouble: Option<String>,
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, reading: Option<&Reading>, view: &View, choice: &Choice) {
    let workers = view.busy.len().min(MOST_WORKERS) as u16;
    let parts = [Constraint::Length(1), Constraint::Length(workers), Constraint::Length(1), Constraint::Min(3)];
    let [head, busy, lost, table, foot] =
        Layout::vertical(parts.into_iter().chain([Constraint::Length(1)])).areas(frame.area());
    frame.render_widget(Paragraph::new(title(reading)).style(Style::new().add_modifier(Modifier::BOLD)), head);
    let bars: Vec<Line<'_>> = view.busy.iter().take(MOST_WORKERS).enumerate().map(bar).collect();
    frame.render_widget(Paragraph::new(Text::from(bars)), busy);
    frame.render_widget(Paragraph::new(losses(view)), lost);
    if choice.connections {
        connections(frame, table, &view.connections, choice.above);
    } else {
        programs(frame, table, &view.programs, choice.above);
    }
    frame.render_widget(Paragraph::new(foot_line(choice)), foot);
}

fn title(reading: Option<&Reading>) -> String {
    let Some(Reading { status, sockets, .. }) = reading else { return "towpath: no service answers".into() };
    let interfaces: Vec<&str> = status.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let interfaces = if interfaces.is_empty() { "no interface".into() } else { interfaces.join(", ") };
    let seconds = status.uptime_us / 1_000_000;
    let up = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let (clients, sockets) = (status.clients.len(), sockets.len());
    format!("towpath {} {}, {interfaces}, up {up}: {clients} clients, {sockets} sockets", status.version, status.stack)
}

fn bar((number, busy): (usize, &f64)) -> Line<'static> {
    let full = (busy.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    Line::from(format!("worker {number:<2} [{}{}] {:3.0} %", "|".repeat(full), " ".repeat(BAR - full), busy * 100.0))
}

fn losses(view: &View) -> String {
    let drops: Vec<String> =
        view.drops.iter().take(6).map(|(reason, rate)| format!("{reason} {}", short(*rate))).collect();
    let drops = if drops.is_empty() { "none".into() } else { drops.join(", ") };
    format!("each second: {} segments sent again; frames dropped: {drops}", short(view.again))
}

fn foot_line(choice: &Choice) -> String {
    if let Some(typing) = &choice.typing {
        return format!("filter (as ss has them): {typing}_");
    }
    let filter = if choice.filter.is_empty() { String::new() } else { format!(" [{}]", choice.filter) };
    let frozen = if choice.frozen { " FROZEN" } else { "" };
    let trouble = choice.trouble.as_ref().map(|why| format!("  {why}")).unwrap_or_default();
    let order = choice.order.name();
    format!("q quit  tab programs/connections  s sort ({order})  / filter{filter}  space freeze{frozen}{trouble}")
}

fn rates(rates: &Rates) -> [String; 3] {
    [short(rates.received), short(rates.acked), short(rates.again)]
}

fn table<'a, const N: usize>(head: [&'a str; N], widths: [u16; N], rows: impl Iterator<Item = Row<'a>>) -> Table<'a> {
    let head = Row::new(head.map(Cell::from)).style(Style::new().add_modifier(Modifier::REVERSED));
    let mut widths: Vec<Constraint> = widths.into_iter().map(Constraint::Length).collect();
    if let Some(first) = widths.first_mut() {
        *first = Constraint::Min(16);
    }
    Table::new(rows, widths).header(head).column_spacing(1)
}

fn programs(frame: &mut Frame<'_>, area: Rect, rows: &[ProgramRow], above: usize) {
    let rows = rows.iter().skip(above).take(area.height.into()).map(|row| {
        let [received, acked, again] = rates(&row.rates);
        let name = if row.program.is_empty() { "(ended)".to_owned() } else { row.program.clone() };
        let (uid, sockets) = (row.uid.to_string(), row.sockets.to_string());
        Row::new([name, uid, sockets, short(row.waiting as f64), received, acked, again])
    });
    let head = ["PROGRAM", "UID", "SOCKETS", "WAITING", "RECEIVED/s", "ACKED/s", "AGAIN/s"];
    frame.render_widget(table(head, [16, 6, 8, 8, 11, 8, 8], rows), area);
}

fn connections(frame: &mut Frame<'_>, area: Rect, rows: &[ConnectionRow], above: usize) {
    let rows = rows.iter().skip(above).take(area.height.into()).map(|ConnectionRow { socket, rates: moved }| {
        let [received, acked, again] = moved.as_ref().map_or_else(|| ["direct".into(), "-".into(), "-".into()], rates);
        let rtt = socket.tcp.map_or_else(|| "-".into(), |tcp| format!("{:.2}", f64::from(tcp.srtt_us) / 1000.0));
        let ends = format!("{} {}", socket.local, socket.peer);
        let waiting = short(f64::from(socket.recv_q) + f64::from(socket.send_q));
        Row::new([ends, socket.program.clone(), socket.state.to_string(), waiting, received, acked, again, rtt])
    });
    let head = ["LOCAL PEER", "PROGRAM", "STATE", "WAITING", "RECVD/s", "ACKED/s", "AGAIN/s", "RTT ms"];
    frame.render_widget(table(head, [16, 15, 10, 7, 7, 7, 7, 6], rows), area);
}

/// A number in up to five characters.
fn short(number: f64) -> String {
    for (limit, divisor, unit) in [(1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G")] {
        // What would be rounded to the limit has the next unit.
        if number < limit * 0.9995 {
            let value = number / divisor;
            let decimals = usize::from((0.05..99.95).contains(&value) && value.fract() > 0.0);
            return format!("{value:.decimals$}{unit}");
        }
    }
    format!("{:.1}T", number / 1e12)
}

#[cfg(test)]
mod tests;
