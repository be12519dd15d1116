-- The ledger's tables. Every CHECK is an invariant of the farm: a row that breaks one cannot be committed.
-- {scorable} and {failing} are the names of the ends that can be the policy's own and the farm's fault.
-- Seeds use all 64 bits and are stored as the signed number of the same bits.

CREATE TABLE run (
    only_row         INTEGER PRIMARY KEY CHECK (only_row = 1),
    run_id           TEXT NOT NULL,
    job_sha256       BLOB NOT NULL CHECK (length(job_sha256) = 32),
    epoch            INTEGER NOT NULL CHECK (epoch >= 1),
    next_token       INTEGER NOT NULL CHECK (next_token >= 1),
    next_group       INTEGER NOT NULL CHECK (next_group >= 0),
    next_shard       INTEGER NOT NULL CHECK (next_shard >= 0),
    draws            INTEGER NOT NULL CHECK (draws >= 0),
    opened_at_micros INTEGER NOT NULL
) STRICT;

CREATE TABLE shards (
    shard_id         TEXT PRIMARY KEY,
    shard_index      INTEGER NOT NULL UNIQUE CHECK (shard_index >= 0),
    state            TEXT NOT NULL CHECK (state IN ('opened', 'written', 'published', 'abandoned')),
    replaces_json    TEXT NOT NULL,
    files_json       TEXT,
    manifest_version INTEGER UNIQUE,
    CHECK ((files_json IS NOT NULL) = (state IN ('written', 'published'))),
    CHECK ((manifest_version IS NOT NULL) = (state = 'published'))
) STRICT;

-- evaluations of policy versions; 0 is what the job names
CREATE TABLE evaluations (
    version         INTEGER PRIMARY KEY CHECK (version >= 0),
    problems        INTEGER NOT NULL CHECK (problems >= 1),
    drawn           INTEGER NOT NULL CHECK (drawn >= 0 AND drawn <= problems),
    state           TEXT NOT NULL CHECK (state IN ('open', 'complete', 'cut')),
    reason          TEXT,
    began_at_micros INTEGER NOT NULL,
    CHECK ((state = 'cut') = (reason IS NOT NULL)),
    CHECK (state <> 'complete' OR drawn = problems)
) STRICT;

-- one at a time
CREATE UNIQUE INDEX one_open_evaluation ON evaluations (state) WHERE state = 'open';

CREATE TABLE groups (
    group_id         TEXT PRIMARY KEY,
    group_index      INTEGER NOT NULL UNIQUE CHECK (group_index >= 0),
    suite            TEXT NOT NULL,
    task_id          TEXT NOT NULL,
    split            TEXT NOT NULL,
    seed             INTEGER NOT NULL,
    group_size       INTEGER NOT NULL CHECK (group_size >= 1),
    task_json        TEXT NOT NULL,
    chance           REAL CHECK (chance > 0 AND chance <= 1),
    eval_version     INTEGER REFERENCES evaluations (version),
    eval_problem     INTEGER CHECK (eval_problem >= 0),
    drawn_at_micros  INTEGER NOT NULL,
    closed_at_micros INTEGER,
    shard_id         TEXT REFERENCES shards (shard_id),
    CHECK (shard_id IS NULL OR closed_at_micros IS NOT NULL),
    CHECK ((eval_version IS NULL) = (eval_problem IS NULL)),
    -- a problem is drawn once, so no task counts twice
    UNIQUE (eval_version, eval_problem)
) STRICT;

-- secret_sha256 is the digest of the secret that came with the token; NULL in a row of a release without secrets
CREATE TABLE trajectories (
    trajectory_id     TEXT PRIMARY KEY,
    group_id          TEXT NOT NULL REFERENCES groups (group_id),
    sample_index      INTEGER NOT NULL CHECK (sample_index >= 0),
    attempt           INTEGER NOT NULL CHECK (attempt >= 0),
    token             INTEGER NOT NULL UNIQUE CHECK (token >= 1),
    env_worker        TEXT NOT NULL,
    policy_worker     TEXT NOT NULL,
    policy_address    TEXT NOT NULL,
    policy_kind       TEXT NOT NULL,
    policy_version    INTEGER,
    hashes_json       TEXT NOT NULL,
    started_at_micros INTEGER NOT NULL,
    queue_micros      INTEGER NOT NULL,
    state             TEXT NOT NULL CHECK (state IN ('assigned', 'finished', 'scored', 'failed')),
    ended             TEXT,
    reason            TEXT,
    steps             INTEGER CHECK (steps >= 0),
    version_min       INTEGER,
    version_max       INTEGER,
    staleness         INTEGER,
    ended_at_micros   INTEGER,
    evidence_sha256   BLOB CHECK (length(evidence_sha256) = 32),
    scorer_saw_sha256 BLOB,
    reward            REAL,
    success           INTEGER CHECK (success IN (0, 1)),
    score_json        TEXT,
    score_micros      INTEGER,
    shard_id          TEXT REFERENCES shards (shard_id),
    secret_sha256     BLOB CHECK (length(secret_sha256) = 32),
    UNIQUE (group_id, sample_index, attempt),
    CHECK ((state = 'assigned') = (ended IS NULL)),
    CHECK ((ended IS NULL) = (reason IS NULL)),
    CHECK ((ended IS NULL) = (steps IS NULL)),
    CHECK ((ended IS NULL) = (ended_at_micros IS NULL)),
    CHECK ((version_min IS NULL) = (version_max IS NULL)),
    CHECK (state NOT IN ('finished', 'scored') OR ended IN ({scorable})),
    CHECK (state <> 'failed' OR ended IN ({failing})),
    -- no reward without seen evidence, and the scorer saw the evidence that was acknowledged
    CHECK (state NOT IN ('finished', 'scored') OR evidence_sha256 IS NOT NULL),
    CHECK ((state = 'scored') = (reward IS NOT NULL)),
    CHECK ((state = 'scored') = (score_json IS NOT NULL)),
    CHECK ((state = 'scored') = (scorer_saw_sha256 IS NOT NULL)),
    CHECK (state <> 'scored' OR scorer_saw_sha256 = evidence_sha256),
    CHECK (shard_id IS NULL OR state IN ('scored', 'failed'))
) STRICT;

-- versions of the policy's weights; without a directory a row stands for the weights of an earlier version, base_version
CREATE TABLE weights (
    version             INTEGER PRIMARY KEY CHECK (version >= 1),
    publication_id      TEXT NOT NULL,
    form                TEXT CHECK (form IN ('full', 'delta', 'adapter')),
    directory           TEXT,
    base_version        INTEGER NOT NULL CHECK (base_version >= 0 AND base_version < version),
    state               TEXT NOT NULL CHECK (state IN ('proposed', 'taken', 'refused', 'withdrawn')),
    reason              TEXT,
    weights_sha256      TEXT CHECK (length(weights_sha256) = 64),
    published_at_micros INTEGER NOT NULL,
    CHECK ((form IS NULL) = (directory IS NULL)),
    CHECK ((state IN ('refused', 'withdrawn')) = (reason IS NOT NULL)),
    CHECK (state NOT IN ('taken', 'withdrawn') OR weights_sha256 IS NOT NULL)
) STRICT;

-- a publication is one version, until that is refused
CREATE UNIQUE INDEX one_version_a_publication ON weights (publication_id) WHERE state <> 'refused';

-- one attempt at a slot at a time, and none after a scored one
CREATE UNIQUE INDEX one_holder_a_slot ON trajectories (group_id, sample_index) WHERE state <> 'failed';
CREATE INDEX trajectories_of_a_shard ON trajectories (shard_id) WHERE shard_id IS NOT NULL;
CREATE INDEX groups_of_an_evaluation ON groups (eval_version) WHERE eval_version IS NOT NULL;
CREATE INDEX groups_of_a_shard ON groups (shard_id) WHERE shard_id IS NOT NULL;

-- The sums that a start needs, so that it adds up no history. `tallies.rs` keeps them with the rows that they count.
-- scored trajectories of the job's own groups, by task
CREATE TABLE task_tallies (
    suite         TEXT NOT NULL,
    task_id       TEXT NOT NULL,
    scored        INTEGER NOT NULL CHECK (scored >= 0),
    success_known INTEGER NOT NULL CHECK (success_known BETWEEN 0 AND scored),
    succeeded     INTEGER NOT NULL CHECK (succeeded BETWEEN 0 AND success_known),
    reward_sum    REAL NOT NULL,
    PRIMARY KEY (suite, task_id)
) STRICT, WITHOUT ROWID;

-- scored trajectories of each evaluation
CREATE TABLE evaluation_tallies (
    version       INTEGER PRIMARY KEY REFERENCES evaluations (version),
    scored        INTEGER NOT NULL CHECK (scored >= 0),
    success_known INTEGER NOT NULL CHECK (success_known BETWEEN 0 AND scored),
    succeeded     INTEGER NOT NULL CHECK (succeeded BETWEEN 0 AND success_known),
    reward_sum    REAL NOT NULL
) STRICT;

-- closed groups of the job's own, committed shards, and failed trajectories by end ('failed/<end>')
CREATE TABLE counts (
    name  TEXT PRIMARY KEY,
    count INTEGER NOT NULL CHECK (count >= 0)
) STRICT, WITHOUT ROWID;

-- what a start loads: shards that are not settled, and groups in none
CREATE INDEX unsettled_shards ON shards (state) WHERE state IN ('opened', 'written');
CREATE INDEX groups_in_no_shard ON groups (group_index) WHERE shard_id IS NULL;
