// SPDX-License-Identifier: GPL-2.0-or-later
//! Options of every command that shows VMs.

use anyhow::ensure;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use holdfast_args::did_you_mean;
use holdfast_observer::{Column, Format, Selection, known_vms};

/// The form of the output.
#[derive(Debug, clap::Args)]
pub(crate) struct FormatArgs {
    /// Form of the output. CSV has a line for each VM, and an empty field for what is not known.
    #[arg(long, value_enum, default_value_t = Kind::Text, conflicts_with = "json")]
    format: Kind,

    /// The same as --format json: an object of schema holdfast.report/1 per line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Text,
    Json,
    Csv,
}

impl FormatArgs {
    pub(crate) fn format(&self) -> Format {
        match self.format {
            _ if self.json => Format::Json,
            Kind::Text => Format::Text,
            Kind::Json => Format::Json,
            Kind::Csv => Format::Csv,
        }
    }
}

/// Which VMs are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct VmArgs {
    /// Show this VM only, by its name, its process or its UUID; may be given more than once.
    #[arg(long = "vm", value_name = "NAME|PID|UUID")]
    vms: Vec<String>,

    /// Sort VMs by this column, the largest first; `lost` is the time that preempted lock holders
    /// and next owners had no CPU.
    #[arg(long, value_name = "COLUMN", default_value = Column::Lost.name())]
    #[arg(value_parser = PossibleValuesParser::new(Column::ALL.map(Column::name)).map(column))]
    sort: Column,

    /// Show the first N of them only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
}

fn column(name: String) -> Column {
    Column::ALL.into_iter().find(|column| column.name() == name).unwrap_or_default()
}

impl VmArgs {
    pub(crate) fn selection(&self) -> Selection {
        Selection { vms: self.vms.clone(), sort: self.sort, top: self.top.map(|top| top as usize) }
    }

    /// The same for the VMs that run on this host: an error if there is none of one of the names.
    pub(crate) fn selection_here(&self) -> anyhow::Result<Selection> {
        let known = known_vms();
        for wanted in &self.vms {
            let one = Selection { vms: vec![wanted.clone()], ..Selection::default() };
            let is = |(pid, name, uuid): &(u32, Option<String>, Option<String>)| {
                one.has(*pid, name.as_deref(), uuid.as_deref())
            };
            // Without the rights to see VMs, the command itself says so.
            ensure!(known.is_empty() || known.iter().any(is), no_such_vm(wanted, &known));
        }
        Ok(self.selection())
    }
}

fn no_such_vm(wanted: &str, known: &[(u32, Option<String>, Option<String>)]) -> String {
    let names = known.iter().filter_map(|(_, name, _)| name.clone());
    let meant = did_you_mean(wanted, names);
    let list = if meant.is_empty() { "; `holdfast vms` lists them" } else { "" };
    format!("there is no VM `{wanted}` on this host{meant}{list}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_vm_gets_a_suggestion_or_the_list() {
        let known = [(7, Some("web1".to_owned()), None), (8, None, None)];
        assert_eq!(
            no_such_vm("wbe1", &known),
            "there is no VM `wbe1` on this host; did you mean `web1`?"
        );
        assert!(no_such_vm("99", &known).ends_with("; `holdfast vms` lists them"));
    }
}
