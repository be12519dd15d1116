//! One Parquet file: written so that it appears whole or not at all, and opened as untrusted input.

use std::any::Any;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, StructArray};
use arrow::datatypes::{DataType, Fields, Schema};
use furrow_rollout::{Id, Run, Shard};
use parquet::arrow::ArrowWriter;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cell::{ColumnCell, fits};
use crate::durable::{create_durable_dir, sync_dir};
use crate::gap::{self, FooterGaps, GapSum, LogprobGap};
use crate::schema::{hex, key};
use crate::schema_version::{SchemaVersion, VERSIONS};
use crate::{RecordsError, ShardStage, Table, encoding, jobs, pages};

/// A file of the data set as the manifest lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenFile {
    /// The table whose rows it holds.
    pub table: Table,
    /// Path below `data/`: `<table>/<shard>.parquet`.
    pub path: String,
    /// Rows that the file's Parquet footer promises; a reader that finds another number reports
    /// damage.
    pub rows: u64,
    /// Length of the file in bytes; a file of another length is damaged.
    pub bytes: u64,
    /// SHA-256 of the whole file in hexadecimal.
    pub sha256: String,
}

/// Origin and layout of the files of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// The run's `data` folder.
    pub data_dir: PathBuf,
    /// A new name; the ledger knows it before the first byte is written.
    pub shard_id: Id<Shard>,
    /// The run that writes the shard.
    pub run_id: Id<Run>,
    /// The job as TOML, without secrets and paths of its machine: stored once beside the tables.
    pub job_toml: String,
    /// Most bytes of a row group, which is also the most that the writer buffers per table.
    pub row_group_bytes: usize,
    /// Compression level of zstd, 1 to 22.
    pub compression_level: i32,
}

// Writing.

/// Which columns a file has, and which jobs wrote its rows.
pub(crate) struct FileOrigin {
    pub(crate) schema: SchemaVersion,
    /// In the order of the rows.
    pub(crate) jobs: Vec<JobRows>,
}

/// Rows of a file that one job wrote, behind those of the jobs before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRows {
    pub(crate) sha256: String,
    pub(crate) rows: u64,
}

/// A file under its temporary name, removed when dropped before it was sealed.
pub(crate) struct TableWriter {
    table: Table,
    name: String,
    dir: PathBuf,
    temp: TempPath,
    writer: ArrowWriter<HashedFile>,
    rows: u64,
    row_group_bytes: usize,
    /// Log-prob gaps of its rescored tokens.
    gaps: FooterGaps,
}

/// Writes to a file and hashes what it writes.
struct HashedFile {
    file: File,
    hash: Sha256,
    bytes: u64,
}

struct TempPath(PathBuf);

impl TableWriter {
    pub(crate) fn create(plan: &ShardPlan, table: Table) -> Result<Self, RecordsError> {
        let sha256 = jobs::store(&plan.data_dir, &plan.job_toml)?;
        let jobs = vec![JobRows { sha256, rows: 0 }];
        Self::create_as(plan, table, &FileOrigin { schema: SchemaVersion::newest(), jobs })
    }

    /// The same for a file of this origin; its jobs are stored already.
    pub(crate) fn create_as(plan: &ShardPlan, table: Table, of: &FileOrigin) -> Result<Self, RecordsError> {
        let dir = plan.data_dir.join(table.as_str());
        create_durable_dir(&dir)?;
        let name = final_name(&plan.shard_id);
        let last = dir.join(&name);
        let temp = dir.join(temp_name(&plan.shard_id));
        if last.exists() {
            return Err(RecordsError::Exists { path: last });
        }
        let file = File::create_new(&temp).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => RecordsError::Exists { path: temp.clone() },
            _ => RecordsError::io("create", &temp)(error),
        })?;
        let hashed = HashedFile { file, hash: Sha256::new(), bytes: 0 };
        let temp = TempPath(temp);
        let schema = Arc::new(Schema::new(of.schema.fields(table)));
        let writer = encoding::properties(
            &schema,
            plan.row_group_bytes,
            plan.compression_level,
            of.pairs(plan, table),
        )
        .and_then(|properties| ArrowWriter::try_new(hashed, schema, Some(properties)))
        .map_err(parquet_error("begin", &temp.0))?;
        let rows = 0;
        let gaps = FooterGaps::default();
        let row_group_bytes = plan.row_group_bytes;
        Ok(Self { table, name, dir, temp, writer, rows, row_group_bytes, gaps })
    }

    /// Adds rows that belong together: they start a new row group rather than be split across two.
    pub(crate) fn add<R: ColumnCell>(&mut self, rows: Vec<R>, bytes: usize) -> Result<(), RecordsError> {
        let batch = RecordBatch::from(R::column(rows).as_struct());
        self.begin_rows(bytes)?;
        self.add_batch(&batch)
    }

    /// Starts a new row group where `bytes` more would overfill the current one.
    pub(crate) fn begin_rows(&mut self, bytes: usize) -> Result<(), RecordsError> {
        let buffered = self.writer.in_progress_size();
        if buffered > 0 && buffered + bytes > self.row_group_bytes {
            self.writer.flush().map_err(parquet_error("write", &self.temp.0))?;
        }
        Ok(())
    }

    pub(crate) fn add_batch(&mut self, batch: &RecordBatch) -> Result<(), RecordsError> {
        self.rows += batch.num_rows() as u64;
        self.writer.write(batch).map_err(parquet_error("write", &self.temp.0))
    }

    /// Adds the log-prob gaps of rescored tokens in its rows.
    pub(crate) fn add_gaps(&mut self, gaps: impl IntoIterator<Item = f64>) {
        self.gaps.extend(gaps);
    }

    /// Adds the gap footer of a file whose rows are copied into this one.
    pub(crate) fn add_gap_footer(&mut self, value: &str) {
        self.gaps.add_footer(value);
    }

    /// Bytes so far, including the current row group.
    pub(crate) fn bytes(&self) -> u64 {
        (self.writer.bytes_written() + self.writer.in_progress_size()) as u64
    }

    /// Writes the footer, syncs, links the final name, syncs the folder, and checks the result.
    pub(crate) fn seal(
        mut self,
        reached: &mut dyn FnMut(Table, ShardStage),
    ) -> Result<WrittenFile, RecordsError> {
        let temp = &self.temp.0;
        if let Some((key, value)) = self.gaps.footer() {
            self.writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        reached(self.table, ShardStage::TempWritten);
        self.writer.finish().map_err(parquet_error("close the footer of", temp))?;
        reached(self.table, ShardStage::FooterClosed);
        let HashedFile { file, hash, bytes } = self.writer.inner();
        file.sync_all().map_err(RecordsError::io("fsync", temp))?;
        reached(self.table, ShardStage::Fsynced);
        let written = WrittenFile {
            table: self.table,
            path: format!("{}/{}", self.table, self.name),
            rows: self.rows,
            bytes: *bytes,
            sha256: hex(&hash.clone().finalize()),
        };
        let last = self.dir.join(&self.name);
        link_new(temp, &last)?;
        reached(self.table, ShardStage::Linked);
        sync_dir(&self.dir)?;
        reached(self.table, ShardStage::DirFsynced);
        drop(self);
        reached(written.table, ShardStage::TempRemoved);
        TableFile::open(&last, &written, IntegrityCheck::Hash)?;
        reached(written.table, ShardStage::Checked);
        Ok(written)
    }
}

impl Write for HashedFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buf)?;
        self.hash.update(&buf[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        // Nothing can be done about a failure here: the next start finds and removes the file.
        drop(std::fs::remove_file(&self.0));
    }
}

impl FileOrigin {
    /// What the footer says of it.
    pub(crate) fn pairs(&self, plan: &ShardPlan, table: Table) -> Vec<KeyValue> {
        let newest = self.jobs.last().map(|job| job.sha256.clone()).unwrap_or_default();
        let mut pairs = vec![
            (key::SCHEMA_VERSION, self.schema.number.to_string()),
            (key::SCHEMA_SHA256, self.schema.sha256(table)),
            (key::TABLE, table.to_string()),
            (key::SHARD_ID, plan.shard_id.to_string()),
            (key::RUN_ID, plan.run_id.to_string()),
            (key::JOB_SHA256, newest),
        ];
        if self.jobs.len() > 1 {
            let jobs = serde_json::to_string(&self.jobs).expect("plain structs always serialise");
            pairs.push((key::JOBS, jobs));
        }
        pairs.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value)).collect()
    }
}

impl JobRows {
    /// Adds rows behind those of these jobs.
    pub(crate) fn push(jobs: &mut Vec<Self>, next: Self) {
        match jobs.last_mut().filter(|last| last.sha256 == next.sha256) {
            Some(last) => last.rows += next.rows,
            None => jobs.push(next),
        }
    }
}

pub(crate) fn final_name(shard_id: &Id<Shard>) -> String {
    format!("{shard_id}.parquet")
}

/// Begins with a dot, so that readers of a folder skip it.
pub(crate) fn temp_name(shard_id: &Id<Shard>) -> String {
    format!(".{shard_id}.parquet.tmp")
}

fn link_new(temp: &Path, last: &Path) -> Result<(), RecordsError> {
    std::fs::hard_link(temp, last).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => RecordsError::Exists { path: last.to_owned() },
        _ => RecordsError::io("link (the file system must support hard links)", last)(error),
    })
}

// Reading.

/// Most bytes of a footer. A shard of 128 MiB in row groups of 1 MiB has one of about 2 MiB.
const FOOTER_BYTES_MAX: u64 = 64 << 20;
/// Most bytes a row group may claim to unpack to; real ones take tens of MiB.
const ROW_GROUP_BYTES_MAX: i64 = 4 << 30;

/// How much of a file is compared with the manifest before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntegrityCheck {
    /// Its length only: for metrics over a whole data set.
    Length,
    /// Every byte, by hash.
    Hash,
}

/// Opens a file of a data set. A named pipe would block the reader forever.
fn open_regular(path: &Path) -> Result<File, RecordsError> {
    let found = path.metadata().map_err(RecordsError::io("inspect", path))?;
    if !found.is_file() {
        return Err(RecordsError::damaged(path, "is not a regular file"));
    }
    File::open(path).map_err(RecordsError::io("open", path))
}

/// A file with a checked footer, whose columns are those of its table in some version of the
/// schema. Columns of today that it lacks read as null.
pub struct TableFile {
    path: PathBuf,
    table: Table,
    schema: SchemaVersion,
    builder: ParquetRecordBatchReaderBuilder<File>,
    /// The same file, for the headers of its pages.
    file: File,
}

/// Rows of a file, a batch at a time.
struct RowReader<R> {
    path: PathBuf,
    batches: Option<ParquetRecordBatchReader>,
    row: PhantomData<fn() -> R>,
}

impl TableFile {
    /// Validates a file: length and hash as listed in the manifest, a readable footer, the table's
    /// columns, and the listed number of rows.
    pub(crate) fn open(
        path: &Path,
        listed: &WrittenFile,
        trust: IntegrityCheck,
    ) -> Result<Self, RecordsError> {
        let mut file = open_regular(path)?;
        let bytes = file.metadata().map_err(RecordsError::io("inspect", path))?.len();
        if bytes != listed.bytes {
            let what = format!("holds {bytes} bytes, the manifest says {}", listed.bytes);
            return Err(RecordsError::damaged(path, what));
        }
        if trust == IntegrityCheck::Hash {
            check_hash(path, &mut file, &listed.sha256)?;
        }
        let this = Self::open_unlisted(path, file, listed.table)?;
        let rows = this.metadata().file_metadata().num_rows();
        if u64::try_from(rows) != Ok(listed.rows) {
            let what = format!("holds {rows} rows, the manifest says {}", listed.rows);
            return Err(RecordsError::damaged(path, what));
        }
        Ok(this)
    }

    /// A file that no manifest lists, with the entry a manifest would have for it.
    pub(crate) fn described(
        data_dir: &Path,
        table: Table,
        shard_id: &Id<Shard>,
    ) -> Result<WrittenFile, RecordsError> {
        let name = format!("{table}/{}", final_name(shard_id));
        let path = data_dir.join(&name);
        let mut file = open_regular(&path)?;
        let (bytes, sha256) = hash_of(&path, &mut file)?;
        let this = Self::open_unlisted(&path, file, table)?;
        let rows = u64::try_from(this.metadata().file_metadata().num_rows()).unwrap_or(0);
        Ok(WrittenFile { table, path: name, rows, bytes, sha256 })
    }

    fn open_unlisted(path: &Path, mut file: File, table: Table) -> Result<Self, RecordsError> {
        check_tail(path, &mut file)?;
        let pages = file.try_clone().map_err(RecordsError::io("open", path))?;
        let builder = guarded(path, "read the footer of", || ParquetRecordBatchReaderBuilder::try_new(file))?;
        let schema = SchemaVersion::newest();
        let mut this = Self { path: path.to_owned(), table, schema, builder, file: pages };
        this.schema = this.stored_schema()?;
        this.check_columns()?;
        this.check_row_groups()?;
        Ok(this)
    }

    /// The version that the footer names.
    fn stored_schema(&self) -> Result<SchemaVersion, RecordsError> {
        let stored = self.origin(key::SCHEMA_VERSION).unwrap_or_default();
        VERSIONS.into_iter().find(|version| version.number.to_string() == stored).ok_or_else(|| {
            let what = format!("has schema version {stored:?}, this furrow reads 1 to {}", VERSIONS.len());
            RecordsError::damaged(&self.path, what)
        })
    }

    fn check_columns(&self) -> Result<(), RecordsError> {
        let table = self.table;
        if self.origin(key::SCHEMA_SHA256) != Some(&self.schema.sha256(table)) {
            return Err(RecordsError::damaged(
                &self.path,
                format!("says that its columns are not those of {table}"),
            ));
        }
        let wanted = DataType::Struct(self.schema.fields(table));
        let got = DataType::Struct(self.builder.schema().fields().clone());
        if !fits(&wanted, &got) || !fits(&got, &wanted) {
            return Err(RecordsError::damaged(&self.path, format!("its columns are not those of {table}")));
        }
        Ok(())
    }

    fn check_row_groups(&self) -> Result<(), RecordsError> {
        let groups = self.metadata().row_groups();
        let huge = |bytes: i64| !(0..=ROW_GROUP_BYTES_MAX).contains(&bytes);
        if groups.iter().any(|group| {
            huge(group.total_byte_size())
                || group.num_rows() < 0
                || group.columns().iter().any(|column| huge(column.uncompressed_size()))
        }) {
            let what = format!("a row group claims more than {ROW_GROUP_BYTES_MAX} bytes or a negative size");
            return Err(RecordsError::damaged(&self.path, what));
        }
        Ok(())
    }

    /// The version of the schema that its columns have.
    pub(crate) fn schema(&self) -> SchemaVersion {
        self.schema
    }

    pub(crate) fn metadata(&self) -> &ParquetMetaData {
        self.builder.metadata()
    }

    /// The gap between recorded log-probs and those of the prefill path, where its footer has one.
    pub(crate) fn prefill_gap(&self) -> Option<LogprobGap> {
        self.origin(key::PREFILL_GAP).and_then(gap::gap)
    }

    /// Adds the gap of its footer to a sum; nothing where no token of the file was rescored.
    pub fn add_prefill_gap(&self, sum: &mut GapSum) {
        if let Some(value) = self.origin(key::PREFILL_GAP) {
            sum.add_footer(value);
        }
    }

    /// The jobs that wrote the file's rows, in their order: one, but for a merged file. Empty in
    /// files of schema version 1, which hold their job.
    pub(crate) fn jobs(&self) -> Vec<JobRows> {
        let listed = self.origin(key::JOBS).and_then(|text| serde_json::from_str(text).ok());
        let rows = u64::try_from(self.metadata().file_metadata().num_rows()).unwrap_or(0);
        let only = self.origin(key::JOB_SHA256).map(|sha256| JobRows { sha256: sha256.to_owned(), rows });
        listed.unwrap_or_else(|| only.into_iter().collect())
    }

    /// A value of the file's metadata.
    pub(crate) fn origin(&self, key: &str) -> Option<&str> {
        let pairs = self.metadata().file_metadata().key_value_metadata()?;
        pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
    }

    /// The file's rows, a batch at a time, up to the first batch that cannot be read. Only the
    /// columns of `R` are read; those that an older file lacks read as null.
    ///
    /// # Panics
    /// Where the table does not have the columns of `R` ([`Table::has_columns`]).
    pub fn rows<R: ColumnCell>(
        self,
    ) -> Result<impl Iterator<Item = Result<Vec<R>, RecordsError>>, RecordsError> {
        let Self { path, table, builder, file, .. } = self;
        // A name that no version has would otherwise read as null everywhere.
        assert!(table.has_columns::<R>(), "{table} has not all of the columns that are read");
        let mut names = Vec::new();
        if let DataType::Struct(fields) = R::data_type() {
            leaf_names("", &fields, &mut names);
        }
        let mask = ProjectionMask::columns(builder.parquet_schema(), names.iter().map(String::as_str));
        let groups: Vec<usize> = (0..builder.metadata().num_row_groups()).collect();
        let batch_rows = batch_rows(&path, &file, builder.metadata(), &groups, &mask)?;
        let builder = builder.with_projection(mask).with_batch_size(batch_rows);
        let batches = guarded(&path, "read", || builder.build())?;
        Ok(RowReader { path, batches: Some(batches), row: PhantomData })
    }

    /// Some of the file's rows as Arrow batches, in file order; reads only the leaves that `keeps`
    /// selects (`observation.screenshot.bytes`, `logprobs.list.item`), and skips row groups without
    /// wanted rows.
    pub fn some_rows(
        self,
        wanted: &[Range<u64>],
        keeps: impl Fn(&str) -> bool,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, RecordsError>>, RecordsError> {
        let Self { path, builder, file, .. } = self;
        let (groups, ranges) = pick_row_groups(builder.metadata(), wanted);
        let row_count: i64 = groups.iter().map(|&group| builder.metadata().row_group(group).num_rows()).sum();
        let schema = builder.parquet_schema();
        let leaves = (0..schema.num_columns()).filter(|&leaf| keeps(&schema.column(leaf).path().string()));
        let mask = ProjectionMask::leaves(schema, leaves);
        let selection = RowSelection::from_consecutive_ranges(ranges.into_iter(), row_count as usize);
        let batch_rows = batch_rows(&path, &file, builder.metadata(), &groups, &mask)?;
        let builder = builder.with_projection(mask).with_batch_size(batch_rows);
        let builder = builder.with_row_groups(groups).with_row_selection(selection);
        let mut batches = guarded(&path, "read", || builder.build())?;
        Ok(std::iter::from_fn(move || next_batch(&path, &mut batches)))
    }

    /// The file's rows as Arrow batches, for copying.
    pub(crate) fn batches(
        self,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, RecordsError>>, RecordsError> {
        let Self { path, builder, file, .. } = self;
        let groups: Vec<usize> = (0..builder.metadata().num_row_groups()).collect();
        let batch_rows = batch_rows(&path, &file, builder.metadata(), &groups, &ProjectionMask::all())?;
        let builder = builder.with_batch_size(batch_rows);
        let mut batches = guarded(&path, "read", || builder.build())?;
        Ok(std::iter::from_fn(move || next_batch(&path, &mut batches)))
    }
}

impl<R: ColumnCell> Iterator for RowReader<R> {
    type Item = Result<Vec<R>, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = next_batch(&self.path, self.batches.as_mut()?);
        let rows = batch.map(|batch| batch.and_then(|batch| read_rows(&self.path, batch)));
        if !matches!(rows, Some(Ok(_))) {
            self.batches = None;
        }
        rows
    }
}

fn read_rows<R: ColumnCell>(path: &Path, batch: RecordBatch) -> Result<Vec<R>, RecordsError> {
    guarded(path, "read", || Ok(R::read(&StructArray::from(batch))))
}

fn next_batch(
    path: &Path,
    batches: &mut ParquetRecordBatchReader,
) -> Option<Result<RecordBatch, RecordsError>> {
    let batch =
        guarded(path, "read", || batches.next().transpose().map_err(ParquetError::from)).transpose()?;
    Some(batch.and_then(|batch| check_names(path, &batch).map(|()| batch)))
}

/// Readers keep names of all rows and repeat them in what they find.
fn check_names(path: &Path, batch: &RecordBatch) -> Result<(), RecordsError> {
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let (Some(most), Some(names)) = (name_bytes_max(field.name()), column.as_string_opt::<i32>()) else {
            continue;
        };
        let longest = names.iter().flatten().map(str::len).max().unwrap_or(0);
        if longest > most {
            let what = format!("{} has a name of {longest} bytes, at most {most} are read", field.name());
            return Err(RecordsError::damaged(path, what));
        }
    }
    Ok(())
}

/// Most bytes of a cell of a column of names; `None` of another column.
fn name_bytes_max(column: &str) -> Option<usize> {
    match column {
        "run_id" | "trajectory_id" | "group_id" => Some(128),
        "task_id" | "suite" | "split" | "policy_kind" | "status" | "end" | "finish_reason" => Some(4096),
        _ => None,
    }
}

/// The row groups that hold wanted rows, and the positions of those rows when these groups follow
/// each other.
fn pick_row_groups(metadata: &ParquetMetaData, wanted: &[Range<u64>]) -> (Vec<usize>, Vec<Range<usize>>) {
    let mut groups = Vec::new();
    let mut ranges = Vec::new();
    let mut begins = 0;
    let mut kept = 0;
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let rows = u64::try_from(group.num_rows()).unwrap_or(0);
        let inside = |range: &Range<u64>| range.start.max(begins)..range.end.min(begins + rows);
        let here: Vec<_> = wanted.iter().map(inside).filter(|range| range.start < range.end).collect();
        if !here.is_empty() {
            let moved = |range: Range<u64>| {
                (range.start - begins + kept) as usize..(range.end - begins + kept) as usize
            };
            ranges.extend(here.into_iter().map(moved));
            groups.push(index);
            kept += rows;
        }
        begins += rows;
    }
    (groups, ranges)
}

/// Rows of a batch, from what the pages of the columns unpack to. A file whose columns unpack to
/// too much is refused.
fn batch_rows(
    path: &Path,
    file: &File,
    metadata: &ParquetMetaData,
    groups: &[usize],
    mask: &ProjectionMask,
) -> Result<usize, RecordsError> {
    let measured =
        guarded(path, "read", || pages::batch_rows(file, metadata, groups, |leaf| mask.leaf_included(leaf)));
    measured.map_err(|error| match error {
        RecordsError::Parquet { source: ParquetError::General(what), .. } => {
            RecordsError::damaged(path, what)
        }
        other => other,
    })
}

/// Dotted paths of the leaves below a struct; a list counts as one leaf.
fn leaf_names(above: &str, fields: &Fields, names: &mut Vec<String>) {
    for field in fields {
        let path = format!("{above}{}", field.name());
        match field.data_type() {
            DataType::Struct(fields) => leaf_names(&format!("{path}."), fields, names),
            _ => names.push(path),
        }
    }
}

fn check_tail(path: &Path, file: &mut File) -> Result<(), RecordsError> {
    let mut tail = [0; 8];
    let read = file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut tail));
    read.map_err(|_| RecordsError::damaged(path, "is shorter than the tail of a Parquet file"))?;
    let [a, b, c, d, magic @ ..] = tail;
    let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
    if &magic != b"PAR1" || footer > FOOTER_BYTES_MAX {
        let what = format!("does not end with a Parquet footer of at most {FOOTER_BYTES_MAX} bytes");
        return Err(RecordsError::damaged(path, what));
    }
    Ok(())
}

fn check_hash(path: &Path, file: &mut File, wanted: &str) -> Result<(), RecordsError> {
    let (_, got) = hash_of(path, file)?;
    if got != wanted {
        return Err(RecordsError::damaged(path, format!("has SHA-256 {got}, the manifest says {wanted}")));
    }
    Ok(())
}

/// Length and SHA-256 of all bytes.
fn hash_of(path: &Path, file: &mut File) -> Result<(u64, String), RecordsError> {
    let mut hash = Sha256::new();
    let bytes = io::copy(file, &mut hash).map_err(RecordsError::io("read", path))?;
    Ok((bytes, hex(&hash.finalize())))
}

/// Runs Parquet's reader, which asserts on damaged files, and turns a panic into an error.
fn guarded<T>(
    path: &Path,
    doing: &'static str,
    read: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, RecordsError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(parquet_error(doing, path)),
        Err(panic) => {
            Err(RecordsError::damaged(path, format!("its reader panicked: {}", panic_text(&*panic))))
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

fn parquet_error(doing: &'static str, path: &Path) -> impl FnOnce(ParquetError) -> RecordsError {
    let path = path.to_owned();
    move |source| RecordsError::Parquet { doing, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, TrajectoryFixture};
    use crate::schema::{GroupRow, StepRow};

    fn steps(dir: &Path) -> (PathBuf, Vec<StepRow>) {
        let (record, steps) = TrajectoryFixture { steps: 2, ..TrajectoryFixture::default() }.trajectory();
        let rows: Vec<_> =
            steps.iter().map(|step| StepRow::new(&record, step, step.step == 1).unwrap()).collect();
        (write(dir, Table::Steps, rows.clone()), rows)
    }

    fn groups(dir: &Path) -> (PathBuf, Vec<GroupRow>) {
        let rows = vec![GroupRow::new(&fixtures::group(&[TrajectoryFixture::default().trajectory().0]))];
        (write(dir, Table::Groups, rows.clone()), rows)
    }

    fn write<R: ColumnCell>(dir: &Path, table: Table, rows: Vec<R>) -> PathBuf {
        let mut writer = TableWriter::create(&fixtures::plan(dir, "s"), table).unwrap();
        writer.add(rows, 0).unwrap();
        dir.join(writer.seal(&mut |_, _| {}).unwrap().path)
    }

    /// Reads a file without checking its hash: only validation and Parquet detect damage.
    fn read_blind<R: ColumnCell>(path: &Path, table: Table) -> Result<Vec<R>, RecordsError> {
        let file = TableFile::open_unlisted(path, File::open(path).unwrap(), table)?;
        file.rows::<R>()?.try_fold(Vec::new(), |mut rows, batch| {
            rows.extend(batch?);
            Ok(rows)
        })
    }

    fn listed(path: &Path, table: Table, rows: u64) -> WrittenFile {
        let bytes = std::fs::read(path).unwrap();
        let sha256 = hex(&Sha256::digest(&bytes));
        WrittenFile { table, path: String::new(), rows, bytes: bytes.len() as u64, sha256 }
    }

    /// Truncates a file at every length.
    fn cut<R: ColumnCell>(path: &Path, table: Table, rows: u64) {
        let listed = listed(path, table, rows);
        let file = File::options().write(true).open(path).unwrap();
        for length in (0..listed.bytes).rev() {
            file.set_len(length).unwrap();
            assert!(TableFile::open(path, &listed, IntegrityCheck::Length).is_err(), "cut at {length}");
            assert!(read_blind::<R>(path, table).is_err(), "cut at {length}, read blind");
        }
    }

    /// Flips bits in every `stride`th byte. Listed files are refused; reading without the hash
    /// gives an error or rows, never a panic.
    fn flip<R: ColumnCell>(path: &Path, table: Table, rows: u64, stride: usize) {
        let whole = std::fs::read(path).unwrap();
        let listed = listed(path, table, rows);
        let mut refused = 0;
        for at in (0..whole.len()).step_by(stride) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            std::fs::write(path, &flipped).unwrap();
            assert!(TableFile::open(path, &listed, IntegrityCheck::Hash).is_err(), "byte {at}");
            refused += usize::from(read_blind::<R>(path, table).is_err());
        }
        assert!(refused > 0, "Parquet alone detects some damage");
    }

    #[test]
    fn a_torn_file_is_refused_wherever_it_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let (path, rows) = steps(dir.path());
        assert_eq!(read_blind::<StepRow>(&path, Table::Steps).unwrap(), rows);
        cut::<StepRow>(&path, Table::Steps, 2);
        let (path, rows) = groups(dir.path());
        assert_eq!(read_blind::<GroupRow>(&path, Table::Groups).unwrap(), rows);
        cut::<GroupRow>(&path, Table::Groups, 1);
    }

    #[test]
    fn a_turned_bit_is_refused_and_never_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = groups(dir.path());
        flip::<GroupRow>(&path, Table::Groups, 1, 1);
        let (path, _) = steps(dir.path());
        // A prime, so that successive files are damaged at different offsets; every byte would take
        // minutes in a debug build.
        flip::<StepRow>(&path, Table::Steps, 2, 61);
    }

    #[test]
    fn another_tables_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = steps(dir.path());
        let error = read_blind::<GroupRow>(&path, Table::Groups).unwrap_err();
        assert!(error.to_string().contains("columns"), "{error}");
    }

    #[test]
    fn a_full_disk_is_distinguished() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = parquet_error("write", Path::new("x"))(ParquetError::from(full));
        assert!(error.is_disk_full());
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(!RecordsError::io("write", Path::new("x"))(denied).is_disk_full());
    }
}
