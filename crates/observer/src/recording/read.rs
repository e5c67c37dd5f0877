// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads recordings. They may come from anywhere, so every deviation from the format is an error.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::{Arc, Once};

use holdfast_policy::VcpuClass;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{FileReader, Length, SerializedFileReader};
use parquet::record::{Field, Row, RowAccessor};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;
use rustix::fs::{SeekFrom, seek};
use serde::Deserialize;

use super::checkpoint::kept;
use super::content::Content;
use super::partial::is_partial;
use super::schema::{COLUMNS, KEY, SCHEMA};
use super::{About, Event, Note, PIDS, Recording, numbers};
use crate::error::ObserverError;
use crate::guest::Guest;
use crate::host::realtime_ns;
use crate::names::{NAME_CHARS, printable};
use crate::report::when;

/// Latest end of a recording: the year 2116. Computations with times below it do not overflow.
const LATEST_NS: i64 = i64::MAX / 2;

const DAY_NS: i64 = 24 * 3600 * 1_000_000_000;

/// Longest recording. One of a month has billions of events.
const LONGEST_DAYS: i64 = 366;

/// Time that events may end outside the recording: clocks are set. They may have begun long before
/// it, as an idle vCPU is off its CPU.
const SLACK_NS: i64 = 3600 * 1_000_000_000;

/// Limit of vCPUs: each takes some kilobytes of counters.
const MAX_VCPUS: usize = 100_000;

/// Longest text that is shown: the reason why a guest cannot be read is a sentence or two.
const TEXT_CHARS: usize = 256;

/// All of a recording.
pub(super) fn read(path: &Path) -> Result<Recording, ObserverError> {
    read_with(path, decode)
}

/// What a recording knows of itself.
pub(super) fn read_about(path: &Path) -> Result<About, ObserverError> {
    read_with(path, |file, len, data| {
        let reader = SerializedFileReader::new(file).map_err(text)?;
        let json = metadata(reader.metadata())?;
        check_layout(reader.metadata(), len, data)?;
        Ok(about(json)?)
    })
}

/// Reads a file, of which `decode` is given the length, and the bytes of it that are no holes.
fn read_with<T>(
    path: &Path,
    decode: impl FnOnce(Content, u64, u64) -> Result<T, Refusal>,
) -> Result<T, ObserverError> {
    let failed = |source: std::io::Error| ObserverError::File {
        action: "open",
        path: path.to_owned(),
        source: source.into(),
    };
    // Opening a pipe would wait for a writer.
    let kind = fs::metadata(path).map_err(failed)?.file_type();
    if kind.is_dir() {
        return Err(failed(ErrorKind::IsADirectory.into()));
    }
    if !kind.is_file() {
        let why = "it is a pipe, a device or a socket, and a recording is read from its end; copy \
                   it into a file";
        return Err(failed(std::io::Error::other(why)));
    }
    let file = File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let data = len - holes(&file, len).map_err(failed)?;
    // The library of the format panics where some files are broken.
    let decoded = unpanicked(|| match is_partial(path) {
        false => decode(Content::whole(file, len), len, data),
        // Up to its last checkpoint.
        true => match kept(&file, usize::MAX).map_err(|error| error.to_string())? {
            None => Err("it is not finished, and has no event yet".into()),
            Some(kept) => {
                let unfinished = Content::new(file, kept.end, kept.footer);
                let len = unfinished.len();
                decode(unfinished, len, data)
            }
        },
    });
    decoded.unwrap_or_else(|| Err(Refusal::Broken("it is broken".into()))).map_err(|refusal| {
        let path = path.to_owned();
        match refusal {
            Refusal::Broken(why) => {
                ObserverError::NotARecording { path, why: printable(&why, TEXT_CHARS) }
            }
            Refusal::OtherVersion(schema) => ObserverError::OtherVersion {
                path,
                schema: printable(&schema, TEXT_CHARS),
                reads: SCHEMA,
            },
        }
    })
}

/// Why a file cannot be read.
enum Refusal {
    Broken(String),
    /// It is a recording of this schema.
    OtherVersion(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::Broken(why.into())
    }
}

/// The result of `read`; none if it panics. The panic prints nothing.
fn unpanicked<T>(read: impl FnOnce() -> T) -> Option<T> {
    thread_local!(static IS_QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let say = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                say(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(read));
    IS_QUIET.set(false);
    outcome.ok()
}

/// Bytes of a file that are in holes, which take no room on a disk.
fn holes(file: &File, len: u64) -> std::io::Result<u64> {
    let (mut holes, mut at) = (0, 0);
    while at < len {
        // The end counts as a hole. A file system without holes reports all of the file as data.
        let hole = seek(file, SeekFrom::Hole(at))?.min(len);
        at = match seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(len),
            Err(rustix::io::Errno::NXIO) => len,
            Err(error) => return Err(error.into()),
        };
        holes += at - hole;
    }
    Ok(holes)
}

/// `data` of its `len` bytes are no holes.
fn decode(file: Content, len: u64, data: u64) -> Result<Recording, Refusal> {
    let reader = SerializedFileReader::new(file).map_err(text)?;
    // The schema first: other versions have other columns.
    let json = metadata(reader.metadata())?;
    let projection = check_layout(reader.metadata(), len, data)?;
    let mut about = about(json)?;
    let numbers = numbers(&about.vms);
    let vms: HashMap<(u32, Option<i64>), u32> =
        about.vms.iter().map(|vm| (vm.pid, vm.begin_ns)).zip(numbers.iter().copied()).collect();
    if vms.len() < about.vms.len() {
        return Err("it has two VMs of one process".into());
    }
    if about.vms.iter().any(|vm| vm.pid >= PIDS) {
        return Err("it has a VM of a process that cannot be".into());
    }
    for vm in &mut about.vms {
        vm.process = vm.pid;
    }
    for (vm, number) in about.vms.iter_mut().zip(numbers).filter(|(vm, number)| vm.pid != *number) {
        vm.name.get_or_insert_with(|| format!("pid {} again", vm.pid));
        vm.pid = number;
    }
    let mut vcpus = HashSet::new();
    let mut notes = Vec::new();
    for row in reader.get_row_iter(Some(projection)).map_err(text)? {
        let (mut note, begin_ns) = note(&row.map_err(text)?)?;
        let ends = about.begin_ns - SLACK_NS..=about.end_ns + SLACK_NS;
        let earliest_ns = (about.begin_ns - LONGEST_DAYS * DAY_NS).max(0);
        if !(earliest_ns <= note.begin_ns
            && note.begin_ns <= note.end_ns
            && ends.contains(&note.end_ns))
        {
            return Err(format!(
                "event {} is from {} to {} ns, and the recording from {} to {} ns",
                notes.len(),
                note.begin_ns,
                note.end_ns,
                about.begin_ns,
                about.end_ns
            )
            .into());
        }
        let number = vms.get(&(note.vm, begin_ns));
        note.vm = *number
            .ok_or_else(|| format!("event {} is of an unknown VM, pid {}", notes.len(), note.vm))?;
        if vcpus.insert((note.vm, note.vcpu)) && vcpus.len() > MAX_VCPUS {
            return Err(format!("it has more than {MAX_VCPUS} vCPUs").into());
        }
        notes.push(note);
    }
    Ok(Recording { about, notes })
}

/// Checks that the columns are those of a recording, that the file has all of them, and that it is
/// large enough for its number of rows. Returns the columns to read.
fn check_layout(metadata: &ParquetMetaData, len: u64, data: u64) -> Result<Type, String> {
    let root = metadata.file_metadata().schema();
    let columns = parse_message_type(COLUMNS).map_err(text)?;
    let same = |column: &Type, expected: &Type| {
        let (is, should) = (column.get_basic_info(), expected.get_basic_info());
        column.is_primitive()
            && column.name() == expected.name()
            && column.get_physical_type() == expected.get_physical_type()
            && is.converted_type() == should.converted_type()
            && is.repetition() == should.repetition()
    };
    let (is, should) = (root.get_fields(), columns.get_fields());
    if is.len() != should.len() || !is.iter().zip(should).all(|(is, should)| same(is, should)) {
        return Err(format!("its columns are not those of {SCHEMA:?}"));
    }
    let within = |column: &ColumnChunkMetaData| {
        let offset = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let end = offset.checked_add(column.compressed_size());
        offset >= 0 && end.is_some_and(|end| end >= offset && end as u64 <= len)
    };
    let mut rows = 0u64;
    for group in metadata.row_groups() {
        if group.num_rows() < 0 || !group.columns().iter().all(within) {
            return Err("it is broken or not complete: parts of it are missing".into());
        }
        rows = rows.saturating_add(group.num_rows() as u64);
    }
    // Each event has a time of its own, which takes more than a byte. Equal values take no bytes,
    // and could fill any memory.
    if rows > data {
        return Err(format!("it cannot have {rows} events in {data} bytes"));
    }
    // What is known of VMs and of the host is in the metadata, too, and there only once.
    let is_needed =
        |column: &&Arc<Type>| !["vm", "vm_uuid", "tier", "host"].contains(&column.name());
    let fields = is.iter().filter(is_needed).map(Arc::clone).collect();
    Type::group_type_builder(root.name()).with_fields(fields).build().map_err(text)
}

/// The metadata of a recording of this program's schema.
fn metadata(metadata: &ParquetMetaData) -> Result<&str, Refusal> {
    #[derive(Deserialize)]
    struct Tag {
        schema: String,
    }
    let json = metadata
        .file_metadata()
        .key_value_metadata()
        .and_then(|pairs| pairs.iter().find(|pair| pair.key == KEY))
        .and_then(|pair| pair.value.as_deref())
        .ok_or_else(|| format!("it has no metadata `{KEY}`"))?;
    let Tag { schema } = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let is_other =
        |schema: &str| schema.strip_prefix(KEY).is_some_and(|version| version.starts_with('/'));
    match schema {
        schema if schema == SCHEMA => Ok(json),
        schema if is_other(&schema) => Err(Refusal::OtherVersion(schema)),
        schema => Err(format!("it is of schema {schema:?}, not {SCHEMA:?}").into()),
    }
}

fn about(json: &str) -> Result<About, String> {
    let mut about: About = serde_json::from_str(json).map_err(|error| error.to_string())?;
    check_times(about.begin_ns, about.end_ns, realtime_ns())?;
    let shorten = |text: &mut String, chars| *text = printable(text, chars);
    shorten(&mut about.host, TEXT_CHARS);
    shorten(&mut about.kernel, TEXT_CHARS);
    for vm in &mut about.vms {
        let names = [&mut vm.name, &mut vm.uuid];
        names.into_iter().flatten().for_each(|text| shorten(text, NAME_CHARS));
        let Guest { tier: _, kernel, unreadable, remedy } = &mut vm.guest;
        let texts = [kernel, unreadable, remedy];
        texts.into_iter().flatten().for_each(|text| shorten(text, TEXT_CHARS));
    }
    Ok(about)
}

/// A row of the columns without names: the note, with the process of its VM and the start of that.
fn note(row: &Row) -> Result<(Note, Option<i64>), String> {
    let string = |column| row.get_string(column).map_err(text);
    let long = |column| row.get_long(column).map_err(text);
    let number = |column| row.get_int(column).map(|n| n as u32).map_err(text);
    let is_null = |column| matches!(row.get_column_iter().nth(column), Some((_, Field::Null)));
    let some_long = |column| (!is_null(column)).then(|| long(column)).transpose();
    let some_bool =
        |column| (!is_null(column)).then(|| row.get_bool(column).map_err(text)).transpose();
    let event = string(2)?;
    let class = string(7)?;
    let note = Note {
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
        siblings: some_long(9)?.map(|siblings| siblings as u64),
        holder_off: some_bool(10)?,
        head_off: some_bool(11)?,
    };
    Ok((note, some_long(4)?))
}

/// Checks that a recording may have been made between these times, if it is `now`.
fn check_times(begin_ns: i64, end_ns: i64, now_ns: u64) -> Result<(), String> {
    if !(0 <= begin_ns && begin_ns < end_ns && end_ns <= LATEST_NS) {
        return Err(format!("it cannot be from {begin_ns} to {end_ns} ns"));
    }
    let [begin, end] = [begin_ns, end_ns].map(|ns| when(ns as u64));
    let days = (end_ns - begin_ns) / DAY_NS;
    if days > LONGEST_DAYS {
        return Err(format!("it cannot be from {begin} to {end}: that is {days} days"));
    }
    if end_ns as u64 > now_ns.saturating_add(DAY_NS as u64) {
        let now = when(now_ns);
        return Err(format!("it cannot end at {end}: by the clock of this machine it is {now}"));
    }
    Ok(())
}

fn text(error: ParquetError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::RecordedVm;
    use super::super::tests::{SYNC, recording, writer};
    use super::*;

    #[test]
    fn reads_a_written_recording() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let recording = recording();
        let mut writer = writer(&path, SYNC);
        writer.add(&recording.notes, &recording.about);
        assert!(!path.exists(), "it has its name only once it is complete");
        writer.finish(&recording.about).unwrap();
        assert_eq!(read(&path).unwrap(), recording);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing else is left");
    }

    /// DuckDB answers the query of `packaging/queries`.
    #[test]
    fn duckdb_reads_it() {
        use std::process::Command;
        let what = "DuckDB (`pip install duckdb`)";
        let Some(python) = crate::tools::find("python3", &["-c", "import duckdb"], what) else {
            return;
        };
        let query = include_str!("../../../../packaging/queries/longest-holders.sql");
        let dir = tempfile::tempdir().unwrap();
        let recording = recording();
        // As a recorder of a directory does.
        let partition = dir.path().join("date=2023-11-14/host=here");
        std::fs::create_dir_all(&partition).unwrap();
        let mut writer = writer(&partition.join("here-20231114T221320Z.parquet"), SYNC);
        writer.add(&recording.notes, &recording.about);
        writer.finish(&recording.about).unwrap();

        let script = "import duckdb, sys; print(*duckdb.sql(sys.argv[1]).fetchall()[0], sep=',')";
        let output =
            Command::new(python).args(["-c", script, query]).current_dir(&dir).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), "here,web <1>,7,1,1,4.0,0.004", "{output:?}");
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other");
        std::fs::write(&path, "PAR1 but not really").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("no recording of `holdfast record`"), "{error}");
        assert!(matches!(read(&dir.path().join("none")), Err(ObserverError::File { .. })));
        assert!(matches!(read(dir.path()), Err(ObserverError::File { .. })));
    }

    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600))
            .unwrap();
        for path in [pipe.as_path(), Path::new("/dev/null")] {
            let error = read(path).unwrap_err();
            let why = std::error::Error::source(&error).unwrap().to_string();
            assert!(why.contains("copy it into a file"), "{error}: {why}");
        }
    }

    /// Writes a recording without checks, and reads it.
    fn reread(recording: &Recording) -> Result<Recording, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let mut writer = writer(&path, SYNC);
        writer.add(&recording.notes, &recording.about);
        writer.finish(&recording.about).unwrap();
        read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn impossible_times_are_refused() {
        const MAX: i64 = i64::MAX;
        let begin = recording().about.begin_ns;
        for (from, to) in [
            (0, begin),
            (MAX - 5, MAX),
            (-MAX, MAX),
            (i64::MIN, i64::MIN),
            (begin + 2, begin + 1),
            (begin, begin + 2 * SLACK_NS),
            (begin - 3 * SLACK_NS, begin - 2 * SLACK_NS),
        ] {
            let mut bad = recording();
            (bad.notes[4].begin_ns, bad.notes[4].end_ns) = (from, to);
            let error = reread(&bad).unwrap_err();
            assert!(error.contains("event 4 is from"), "{error}");
            let mut bad = recording();
            (bad.about.begin_ns, bad.about.end_ns) = (from, to);
            assert!(reread(&bad).is_err() || (0 <= from && from <= to), "{from} {to}");
        }
        const DAY: u64 = DAY_NS as u64;
        let end = begin as u64 + 1;
        check_times(begin, begin + 1, end - DAY).unwrap();
        let early = check_times(begin, begin + 1, end - DAY - 1).unwrap_err();
        assert!(early.contains("by the clock of this machine it is 2023-11-13T"), "{early}");
        check_times(begin, begin + LONGEST_DAYS * DAY_NS, MAX as u64).unwrap();
        let long = check_times(0, begin, MAX as u64).unwrap_err();
        assert!(long.contains("from 1970-01-01T00:00:00Z to 2023"), "{long}");
        assert!(check_times(begin, begin, MAX as u64).is_err(), "rates would have no end");
        let mut early = recording();
        early.notes[0].begin_ns -= 40 * DAY_NS;
        assert_eq!(reread(&early).unwrap(), early, "it was away before the recording began");
    }

    #[test]
    fn more_events_than_bytes_are_refused() {
        let mut bomb = recording();
        bomb.notes = vec![bomb.notes[0]; 20_000];
        let error = reread(&bomb).unwrap_err();
        assert!(error.contains("cannot have 20000 events"), "{error}");
    }

    #[test]
    fn a_hole_makes_no_room_for_events() {
        use std::os::unix::fs::FileExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let mut bomb = recording();
        bomb.notes = vec![bomb.notes[0]; 20_000];
        let mut writer = writer(&path, SYNC);
        writer.add(&bomb.notes, &bomb.about);
        writer.finish(&bomb.about).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        // The footer ends with its own length and four letters.
        let footer_len: [u8; 4] = bytes[bytes.len() - 8..][..4].try_into().unwrap();
        let footer = bytes.len() - 8 - u32::from_le_bytes(footer_len) as usize;
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(footer as u64).unwrap();
        file.write_all_at(&bytes[footer..], (footer + (1 << 20)) as u64).unwrap();
        assert!(file.metadata().unwrap().len() > 1 << 20);
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("cannot have 20000 events"), "{error}");
    }

    #[test]
    fn rows_have_the_uuid_and_the_tier_of_their_vm() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let mut both = super::super::tests::two_vms();
        both.about.vms[1].guest.tier = Some(holdfast_bpf::Tier::Exact);
        let mut writer = writer(&path, SYNC);
        writer.add(&both.notes, &both.about);
        writer.finish(&both.about).unwrap();
        let file = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let rows = file.get_row_iter(None).unwrap().map(|row| {
            let row = row.unwrap();
            let of =
                |name: &str| row.get_column_iter().find(|(n, _)| *n == name).unwrap().1.clone();
            [of("vm_pid"), of("vm_uuid"), of("tier")].map(|field| field.to_string())
        });
        let rows: HashSet<[String; 3]> = rows.collect();
        let uuid = "\"0c24e29f-0000-4000-8000-000000000001\"";
        let expected = [["7", "null", "null"], ["9", uuid, "\"exact\""]];
        assert_eq!(rows, HashSet::from(expected.map(|row| row.map(str::to_owned))));
    }

    #[test]
    fn events_of_no_vm_and_two_vms_of_one_process_are_refused() {
        let mut bad = recording();
        bad.notes[2].vm = 9;
        assert!(reread(&bad).unwrap_err().contains("event 2 is of an unknown VM, pid 9"));
        let mut bad = recording();
        bad.about.vms.push(bad.about.vms[0].clone());
        assert!(reread(&bad).unwrap_err().contains("two VMs of one process"));
    }

    #[test]
    fn a_vm_that_has_the_number_of_one_that_ended_is_another() {
        let mut both = recording();
        let first = &both.about.vms[0];
        let second =
            RecordedVm { begin_ns: first.begin_ns.map(|ns| ns + 1), name: None, ..first.clone() };
        both.about.vms.push(second);
        let number = numbers(&both.about.vms)[1];
        both.notes[7].vm = number;
        let read = reread(&both).unwrap();
        let seen: Vec<_> = read.about.vms.iter().map(|vm| (vm.pid, vm.label())).collect();
        assert_eq!(seen, [(7, "web <1>".into()), (number, "pid 7 again".into())]);
        assert_eq!(read.notes, both.notes);
        let sums = read.summary();
        let of = |pid| sums.vms.iter().find(|vm| vm.pid == pid).unwrap().total().preemptions;
        assert_eq!((of(7).total(), of(number).total()), (2, 1));
        both.about.vms[0].pid = PIDS;
        assert!(reread(&both).unwrap_err().contains("cannot be"));
    }

    #[test]
    fn text_in_a_recording_cannot_steer_a_terminal() {
        let bad = "\u{1b}[31mRED\u{202e}\u{7}\n".to_owned() + &"x".repeat(100_000);
        let mut steering = recording();
        let about = &mut steering.about;
        (about.host, about.kernel) = (bad.clone(), bad.clone());
        let vm = &mut about.vms[0];
        (vm.name, vm.uuid) = (Some(bad.clone()), Some(bad.clone()));
        let guest = &mut vm.guest;
        guest.kernel = Some(bad.clone());
        (guest.unreadable, guest.remedy) = (Some(bad.clone()), Some(bad.clone()));
        let About { host, kernel, vms, .. } = reread(&steering).unwrap().about;
        let vm = vms[0].clone();
        let Guest { tier: _, kernel: guest, unreadable, remedy } = vm.guest;
        let texts = [Some(host), Some(kernel), vm.name, vm.uuid, guest, unreadable, remedy];
        for text in texts.map(Option::unwrap) {
            assert!(text.starts_with("?[31mRED???x") && text.len() <= 256, "{text}");
        }
        steering.about.schema = bad;
        let error = reread(&steering).unwrap_err();
        assert!(!error.contains(|c: char| c.is_control() || c == '\u{202e}'), "{error}");
        assert!(error.len() < 1000, "{error}");
    }

    /// Writes a file of these columns and this metadata, and reads it.
    fn refused(columns: &str, json: String) -> ObserverError {
        use parquet::file::metadata::KeyValue;
        use parquet::file::writer::SerializedFileWriter;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let schema = Arc::new(parse_message_type(columns).unwrap());
        let file = File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
        writer.append_key_value_metadata(KeyValue::new(KEY.to_owned(), json));
        writer.close().unwrap();
        read(&path).unwrap_err()
    }

    #[test]
    fn a_recording_of_another_version_is_called_so_whatever_its_columns() {
        let json = r#"{"schema":"holdfast.recording/2","from":1}"#;
        let error = refused("message holdfast { required int64 end_ns; }", json.into());
        assert!(matches!(error, ObserverError::OtherVersion { .. }), "{error}");
        let said = error.to_string();
        let both =
            "it is of schema holdfast.recording/2, and this program reads ".to_owned() + SCHEMA;
        assert!(said.contains(&both), "{said}");
        let other = refused(COLUMNS, r#"{"schema":"holdfast.recordings"}"#.into());
        assert!(matches!(other, ObserverError::NotARecording { .. }), "{other}");
    }

    #[test]
    fn other_columns_are_refused() {
        let first_three = COLUMNS.lines().take(5).collect::<Vec<_>>().join("\n") + "}";
        for columns in [
            first_three,
            COLUMNS.replace("required int64 end_ns", "optional int64 end_ns"),
            COLUMNS.replace("required int64 end_ns", "required int32 end_ns"),
            COLUMNS.replace("required int64 end_ns", "repeated int64 end_ns"),
            COLUMNS
                .replace("int64 end_ns", "group end_ns { required int64 a; }")
                .replace("};", "}"),
        ] {
            let json = serde_json::to_string(&recording().about).unwrap();
            let error = refused(&columns, json).to_string();
            assert!(error.contains("its columns are not those"), "{columns} {error}");
        }
    }

    /// Reading any broken file ends soon, and a recording that was read can be shown.
    #[test]
    fn broken_files_neither_panic_nor_hang() {
        use std::time::{Duration, Instant};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let good = recording();
        let mut writer = writer(&path, SYNC);
        writer.add(&good.notes, &good.about);
        writer.finish(&good.about).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (mut read_anyway, mut refused) = (0, 0);
        let mut check = |broken: &[u8], what: &str| {
            std::fs::write(&path, broken).unwrap();
            let start = Instant::now();
            match read(&path) {
                Ok(recording) => {
                    recording.summary();
                    super::super::html::render(&recording, &recording.summary());
                    super::super::perfetto::write(&recording, &mut std::io::sink()).unwrap();
                    read_anyway += 1;
                }
                Err(_) => refused += 1,
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{what}: {:?}", start.elapsed());
        };
        for at in 0..bytes.len() {
            let flip = [1 << (at % 8), 0x80, 0xff][at % 3];
            let mut broken = bytes.clone();
            broken[at] ^= flip;
            check(&broken, &format!("byte {at} of {} with {flip:#x}", bytes.len()));
        }
        for len in (0..bytes.len()).step_by(37) {
            check(&bytes[..len], &format!("the first {len} bytes"));
        }
        assert!(read_anyway > 0 && refused > 0, "{read_anyway} {refused}");
    }
}
