// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads recordings. They may come from anywhere: what is not as it should be is an error.

use std::fs::File;
use std::path::Path;

use holdfast_policy::VcpuClass;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Row, RowAccessor};

use super::schema::{KEY, SCHEMA};
use super::{About, Event, Note, Recording};
use crate::error::ObserverError;

pub(super) fn read(path: &Path) -> Result<Recording, ObserverError> {
    let not_one = |why: String| ObserverError::NotARecording { path: path.to_owned(), why };
    let file = File::open(path).map_err(|source| ObserverError::File {
        action: "open",
        path: path.to_owned(),
        source: source.into(),
    })?;
    let reader = SerializedFileReader::new(file).map_err(|error| not_one(error.to_string()))?;
    let metadata = reader.metadata().file_metadata();
    let about = metadata
        .key_value_metadata()
        .and_then(|pairs| pairs.iter().find(|pair| pair.key == KEY))
        .and_then(|pair| pair.value.as_deref())
        .ok_or_else(|| not_one(format!("it has no metadata `{KEY}`")))?;
    let about: About = serde_json::from_str(about).map_err(|error| not_one(error.to_string()))?;
    if about.schema != SCHEMA {
        return Err(not_one(format!("it is of schema {:?}, not {SCHEMA:?}", about.schema)));
    }
    let rows = reader.get_row_iter(None).map_err(|error| not_one(error.to_string()))?;
    let notes = rows
        .map(|row| note(&row?).map_err(parquet::errors::ParquetError::General))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| not_one(error.to_string()))?;
    Ok(Recording { about, notes })
}

fn note(row: &Row) -> Result<Note, String> {
    let error = |error: parquet::errors::ParquetError| error.to_string();
    let text = |column| row.get_string(column).map_err(error);
    let long = |column| row.get_long(column).map_err(error);
    let number = |column| row.get_int(column).map(|n| n as u32).map_err(error);
    let event = text(2)?;
    let class = text(7)?;
    Ok(Note {
        begin_ns: long(0)?,
        end_ns: long(1)?,
        event: *Event::ALL
            .iter()
            .find(|known| known.name() == event)
            .ok_or_else(|| format!("event {event:?} is not known"))?,
        vm: number(3)?,
        tid: number(5)?,
        vcpu: number(6)?,
        class: *VcpuClass::ALL
            .iter()
            .find(|known| known.name() == class)
            .ok_or_else(|| format!("class {class:?} is not known"))?,
        cpu: number(8)?,
        siblings: long(9)? as u64,
        holder_off: row.get_bool(10).map_err(error)?,
        head_off: row.get_bool(11).map_err(error)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::recording;
    use super::super::write::Writer;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let recording = recording();
        let mut writer = Writer::create(&path).unwrap();
        writer.add(&recording.notes, &recording.about);
        assert!(!path.exists(), "it has its name only once it is complete");
        writer.finish(&recording.about).unwrap();
        assert_eq!(read(&path).unwrap(), recording);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing else is left");
    }

    /// The query of the book, as DuckDB answers it: the command, or Python's module.
    #[test]
    fn duckdb_reads_it() {
        use std::process::Command;
        let query = include_str!("../../../../packaging/queries/longest-holders.sql");
        let dir = tempfile::tempdir().unwrap();
        let recording = recording();
        let mut writer = Writer::create(&dir.path().join("holdfast.parquet")).unwrap();
        writer.add(&recording.notes, &recording.about);
        writer.finish(&recording.about).unwrap();

        let script = "import duckdb, sys; print(*duckdb.sql(sys.argv[1]).fetchall()[0], sep=',')";
        let python: &[&str] = &["python3", "-c", script, query];
        let command: &[&str] = &["duckdb", "-csv", "-noheader", "-c", query];
        let has = |argv: &[&str]| {
            Command::new(argv[0]).args(&argv[1..]).output().is_ok_and(|o| o.status.success())
        };
        let argv = match (has(&["duckdb", "--version"]), has(&["python3", "-c", "import duckdb"])) {
            (true, _) => command,
            (_, true) => python,
            _ => {
                eprintln!("SKIPPED: there is no DuckDB (`pip install duckdb`, or the command)");
                return;
            }
        };
        let output = Command::new(argv[0]).args(&argv[1..]).current_dir(&dir).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), "web <1>,7,1,1,4.0,0.004", "{output:?}");
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other");
        std::fs::write(&path, "PAR1 but not really").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("no recording of `holdfast record`"), "{error}");
        assert!(matches!(read(&dir.path().join("none")), Err(ObserverError::File { .. })));
    }
}
