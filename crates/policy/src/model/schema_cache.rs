//! Automata of the JSON schemas that chats ask for, compiled once each.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::Semaphore;

use crate::constrain::{Constraint, ConstraintError, SharedTransitions};

/// Automata of schemas, the most recently used first.
#[derive(Debug)]
pub(super) struct SchemaCache {
    pub letters: OnceLock<SharedTransitions>,
    kept: Mutex<Vec<(SchemaKey, Arc<Constraint>)>>,
    /// Automata are compiled one at a time, since a compilation cannot be aborted when its caller
    /// leaves.
    making: Arc<Semaphore>,
}

/// What identifies an automaton.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchemaKey {
    /// The schema as it was sent, with the order of its properties: equal JSON values can stand for
    /// different texts. `None`: any object.
    pub schema: Option<String>,
    pub max_tokens: u32,
}

/// How many automata are kept, since clients send the same few schemas repeatedly. One has at most
/// 200,000 nodes of 100 bytes, 2 million ids of 8 bytes, and 2,048 sets.
const SCHEMAS_MAX: usize = 8;

impl Default for SchemaCache {
    fn default() -> Self {
        Self { letters: OnceLock::new(), kept: Mutex::default(), making: Arc::new(Semaphore::new(1)) }
    }
}

impl SchemaCache {
    /// Returns the automaton of a key: one that is kept, or one that `compile` builds on a blocking
    /// thread.
    pub(super) async fn get(
        self: Arc<Self>,
        form: SchemaKey,
        make: impl FnOnce(&Self) -> Result<Arc<Constraint>, ConstraintError> + Send + 'static,
    ) -> Result<Arc<Constraint>, ConstraintError> {
        if let Some(constraint) = self.find(&form) {
            return Ok(constraint);
        }
        let turn = self.making.clone().acquire_owned().await;
        // Another caller may have compiled it while this one waited.
        if let Some(constraint) = self.find(&form) {
            return Ok(constraint);
        }
        let making = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            make(&self).inspect(|constraint| self.keep(form, constraint.clone()))
        });
        making.await.unwrap_or_else(|why| Err(ConstraintError::Broken { why: why.to_string() }))
    }

    fn find(&self, form: &SchemaKey) -> Option<Arc<Constraint>> {
        let mut kept = self.lock();
        let index = kept.iter().position(|(of, _)| of == form)?;
        kept[..=index].rotate_right(1);
        Some(kept[0].1.clone())
    }

    fn keep(&self, form: SchemaKey, constraint: Arc<Constraint>) {
        let mut kept = self.lock();
        kept.truncate(SCHEMAS_MAX - 1);
        kept.insert(0, (form, constraint));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(SchemaKey, Arc<Constraint>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::constrain::{Schema, TokenLexicon};

    /// An automaton over ids that are bytes.
    fn made() -> Arc<Constraint> {
        let bytes: Vec<u8> = (0..=255).collect();
        let lexicon = TokenLexicon::new(
            257,
            256,
            |id| bytes.get(id as usize..=id as usize),
            |text| text.bytes().map(u32::from).collect(),
        );
        let schema = Schema::check(&serde_json::json!({ "type": "null" })).unwrap();
        Constraint::of_schema(&schema, &lexicon, &SharedTransitions::of(&lexicon), 10).unwrap()
    }

    fn key(schema: &str, max_tokens: u32) -> SchemaKey {
        SchemaKey { schema: Some(schema.to_owned()), max_tokens }
    }

    /// Counts compilations, and how many run at the same time.
    #[derive(Default)]
    struct BuildCounters {
        made: AtomicUsize,
        now: AtomicUsize,
        most: AtomicUsize,
    }

    async fn get(schemas: &Arc<SchemaCache>, works: &Arc<BuildCounters>, form: SchemaKey) -> Arc<Constraint> {
        let works = works.clone();
        let make = move |_: &SchemaCache| {
            works.made.fetch_add(1, Ordering::SeqCst);
            works.most.fetch_max(works.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::runtime::Handle::current().block_on(tokio::time::sleep(Duration::from_millis(30)));
            works.now.fetch_sub(1, Ordering::SeqCst);
            Ok(made())
        };
        schemas.clone().get(form, make).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn one_automaton_is_built_per_schema_and_one_at_a_time() {
        let schemas = Arc::new(SchemaCache::default());
        let works = Arc::new(BuildCounters::default());
        let forms = [
            key(r#"{"a":1,"b":2}"#, 10),
            key(r#"{"b":2,"a":1}"#, 10),
            key(r#"{"a":1,"b":2}"#, 11),
            SchemaKey { schema: None, max_tokens: 10 },
        ];
        // All at once, each three times.
        let requests = forms.iter().cycle().take(12).map(|form| {
            let schemas = schemas.clone();
            let works = works.clone();
            let form = form.clone();
            tokio::spawn(async move { get(&schemas, &works, form).await })
        });
        let mut got = Vec::new();
        for request in requests.collect::<Vec<_>>() {
            got.push(request.await.unwrap());
        }
        for (at, one) in got.iter().enumerate() {
            for (other_at, other) in got.iter().enumerate() {
                assert_eq!(Arc::ptr_eq(one, other), at % 4 == other_at % 4, "{at} and {other_at}");
            }
        }
        assert_eq!((works.made.load(Ordering::SeqCst), works.most.load(Ordering::SeqCst)), (4, 1));
    }

    #[tokio::test]
    async fn a_repeated_schema_is_cached_and_a_failed_one_is_not() {
        let schemas = Arc::new(SchemaCache::default());
        let works = Arc::new(BuildCounters::default());
        let usual = get(&schemas, &works, key("usual", 1)).await;
        let first = get(&schemas, &works, key("first", 1)).await;
        for other in 0..SCHEMAS_MAX {
            get(&schemas, &works, key(&other.to_string(), 1)).await;
            assert!(Arc::ptr_eq(&usual, &get(&schemas, &works, key("usual", 1)).await), "{other}");
        }
        assert!(
            !Arc::ptr_eq(&first, &get(&schemas, &works, key("first", 1)).await),
            "{SCHEMAS_MAX} are kept"
        );
        // A compilation finishes although its caller has gone, and the next caller finds its
        // result.
        let before = works.made.load(Ordering::SeqCst);
        let gone = tokio::time::timeout(Duration::from_millis(5), get(&schemas, &works, key("gone", 1)));
        assert!(gone.await.is_err());
        get(&schemas, &works, key("gone", 1)).await;
        assert_eq!(works.made.load(Ordering::SeqCst), before + 1);
        let failing = schemas.clone().get(key("failing", 1), |_| Err(ConstraintError::Ambiguous));
        assert_eq!(failing.await.unwrap_err(), ConstraintError::Ambiguous);
        let panicking = schemas.clone().get(key("failing", 1), |_| panic!("a fault"));
        assert!(matches!(panicking.await.unwrap_err(), ConstraintError::Broken { .. }));
        get(&schemas, &works, key("failing", 1)).await;
    }
}
