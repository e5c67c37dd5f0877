// SPDX-License-Identifier: GPL-2.0-or-later
//! Options of every command that shows VMs.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use holdfast_args::number_within;
use holdfast_observer::{Column, Format, ObserverError, Selection, Wanted, known_vms};

/// The form of the output.
#[derive(Debug, clap::Args)]
pub(crate) struct FormatArgs {
    /// Form of the output. CSV has an empty field for what is not known.
    #[arg(long, value_enum, default_value_t = Kind::Text, conflicts_with = "json")]
    format: Kind,

    /// The same as --format json: an object per line, of schema holdfast.report/1, or of
    /// holdfast.compare/1 where recordings are compared.
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

/// Which VMs are meant.
#[derive(Debug, clap::Args)]
pub(crate) struct WantedArgs {
    /// This VM only, by its name, its process or its UUID; may be given more than once.
    #[arg(long = "vm", value_name = "NAME|PID|UUID")]
    vms: Vec<String>,
}

impl WantedArgs {
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted(self.vms.clone())
    }

    /// The same for VMs that run on this host: an error if there is none of one of the names.
    pub(crate) fn wanted_here(&self) -> Result<Wanted, ObserverError> {
        let wanted = self.wanted();
        if !self.vms.is_empty() {
            let known = known_vms();
            let ids = known.iter().map(|vm| (vm.pid, vm.name.as_deref(), vm.uuid.as_deref()));
            // Without the rights to see VMs, the command itself says so.
            if !known.is_empty() {
                wanted.check(ids, "on this host")?;
            }
        }
        Ok(wanted)
    }
}

/// Which VMs are shown, and in which order.
#[derive(Debug, clap::Args)]
pub(crate) struct VmArgs {
    #[command(flatten)]
    wanted: WantedArgs,

    /// Sort by this column of the report, the largest first; by default by the time that preempted
    /// lock holders and next owners were off the CPU.
    #[arg(long, value_name = "COLUMN")]
    #[arg(value_parser = columns(), ignore_case = true)]
    sort: Option<Column>,

    /// The first N of them only.
    #[arg(long, value_name = "N", value_parser = number_within(1u32..))]
    top: Option<u32>,
}

fn columns() -> impl TypedValueParser<Value = Column> {
    // As the table has them, too: LHP%, PLE/s.
    let value = |column: Column| PossibleValue::new(column.name()).alias(column.heading());
    PossibleValuesParser::new(Column::OF_REPORT.map(value)).map(|name| column(&name))
}

fn column(text: &str) -> Column {
    let is_meant = |column: &Column| {
        [column.name(), column.heading()].iter().any(|name| name.eq_ignore_ascii_case(text))
    };
    Column::OF_REPORT.into_iter().find(is_meant).unwrap_or_default()
}

impl VmArgs {
    pub(crate) fn selection(&self) -> Selection {
        self.selection_of(self.wanted.wanted())
    }

    /// The same for the VMs that run on this host: an error if there is none of one of the names.
    pub(crate) fn selection_here(&self) -> Result<Selection, ObserverError> {
        Ok(self.selection_of(self.wanted.wanted_here()?))
    }

    fn selection_of(&self, vms: Wanted) -> Selection {
        let (sort, top) = (self.sort.unwrap_or_default(), self.top.map(|top| top as usize));
        Selection { vms, sort, top }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        vms: VmArgs,
    }

    #[test]
    fn a_column_is_named_as_the_table_has_it_or_in_lower_case() {
        for (text, wanted) in [
            ("lhp", Column::Lhp),
            ("LHP%", Column::Lhp),
            ("PLE/s", Column::Ple),
            ("HOLDER", Column::Holder),
            ("p99", Column::P99),
            ("vm", Column::Vm),
        ] {
            let cli = Cli::try_parse_from(["x", "--sort", text]).unwrap();
            assert_eq!(cli.vms.sort, Some(wanted), "{text}");
        }
        let error = Cli::try_parse_from(["x", "--sort", "holders"]).unwrap_err().to_string();
        assert!(error.contains("'holder'") && !error.contains("lhp%"), "{error}");
    }
}
