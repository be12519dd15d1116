//! One batch through all layers, as launches and products on a lane.
//!
//! Floor: every weight is read once a batch (24.6 GB in bfloat16 for the 12B: 5.7 ms at 4.3 TB/s) and every row costs two operations a weight
//! (23.3 GFLOP a token); states, keys and values are read and written once a row. All else here is small beside it.
//!
//! Nothing here looks at a value: which kernels run, on how many rows, follows from the form of the batch, so a batch of the same form is the same
//! launches with the same parameters, and can be recorded once.

use furrow_model::config::{MoeConfig, TextConfig};

use crate::batch::{Form, Lists};
use crate::executor::{Executor, ExecutorError, Lane, Matrix, Number};
use crate::launch::{Launch, Stored, View};
use crate::ops::Rows;
use crate::ops::attention::{Attention, Parts};
use crate::ops::conv::CausalConv;
use crate::ops::convert;
use crate::ops::embed::Embed;
use crate::ops::mlp::squared_relu;
use crate::ops::moe::{Experts, Grouping, Route, tiles_max};
use crate::ops::norm::{GatedNorm, ResidualRmsNorm};
use crate::ops::ssm::Recurrence;
use crate::state::States;
use crate::types::Types;
use crate::weights::{AttentionWeights, Mixer, MlpWeights, MoeWeights, SsmWeights, TextWeights};
use crate::work::{ExpertWork, Limits, Widths, Work};

/// Values that `squared_relu` takes at a time.
const PACK: usize = 8;

/// What a layer's work came to.
pub(crate) type Done = Result<(), ExecutorError>;

/// Kernels for bfloat16 only, where a combination of types has them.
pub(crate) trait Fast: Types + Sized {
    /// The recurrence by chunks.
    fn chunked(recurrence: &Recurrence<'_, Self::Value, Self::State>) -> Option<Launch>;
    /// Attention of one new token a span.
    fn decode(attention: &Attention<'_, Self::Value>, parts: &Parts) -> Option<[Launch; 2]>;
    /// Attention of many new tokens.
    fn prefill(attention: &Attention<'_, Self::Value>, tiles: View<crate::launch::Tile>) -> Option<Launch>;
    /// The experts' MLPs.
    fn experts(experts: &Experts<'_, Self::Value>) -> [Launch; 3];
}

/// Everything a batch needs.
pub(crate) struct Pass<'a, P: Types> {
    pub text: &'a TextConfig,
    pub weights: &'a TextWeights<P::Value>,
    /// Rows of all tile features.
    pub features: View<P::Value>,
    pub states: &'a States<P>,
    pub work: &'a Work<P>,
    pub limits: &'a Limits,
    pub form: Form,
    pub lists: Lists,
    /// Where the logits of the first wanted row go.
    pub logits_at: usize,
}

impl<P: Fast> Pass<'_, P> {
    /// Embeds, runs the layers, and leaves the wanted rows' logits in the workspace.
    pub fn run(&self, executor: &mut dyn Executor) -> Done {
        let (mut ssm, mut attention) = (0, 0);
        self.embed(executor)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.enter(executor, layer.norm, index > 0)?;
            match &layer.mixer {
                Mixer::Ssm(weights) => {
                    self.ssm(executor, ssm, weights)?;
                    ssm += 1;
                }
                Mixer::Attention(weights) => {
                    self.attention(executor, attention, weights)?;
                    attention += 1;
                }
                Mixer::Mlp(weights) => self.mlp(executor, weights)?,
                Mixer::Moe(weights) => self.moe(executor, weights)?,
            }
        }
        self.head(executor)
    }

    fn embed(&self, executor: &mut dyn Executor) -> Done {
        let embed = Embed {
            table: self.weights.embeddings.values,
            features: self.features,
            sources: self.lists.sources,
            out: self.all(self.work.hidden, self.text.hidden),
            width: self.text.hidden,
        };
        launch(executor, &embed.launch())
    }

    /// Adds what the layer before gave to the residual stream, and norms it.
    fn enter(&self, executor: &mut dyn Executor, weight: View<P::Value>, after_a_layer: bool) -> Done {
        let hidden = self.text.hidden;
        let norm = ResidualRmsNorm {
            residual: self.all(self.work.hidden, hidden),
            delta: after_a_layer.then(|| self.all(self.work.delta, hidden)),
            rows: None,
            weight,
            out: self.all(self.work.normed, hidden),
            count: self.form.rows,
            epsilon: self.text.norm_epsilon,
        };
        launch(executor, &norm.launch())
    }

    fn ssm(&self, executor: &mut dyn Executor, layer: usize, weights: &SsmWeights<P::Value>) -> Done {
        let (config, work) = (&self.text.ssm, self.work);
        let stride = Widths::of(self.text).projected;
        let [z, mixed, dt] = config.parts();
        let projected = Rows { values: self.all(work.wide, stride), stride };
        self.product(executor, &weights.in_proj, work.normed, projected)?;
        let part = |from: usize| Rows { values: projected.values.from(from), stride };
        let conv = CausalConv {
            input: part(mixed.start),
            state: self.states.conv(layer),
            spans: self.lists.spans,
            tiles: self.lists.conv_tiles,
            taps: weights.taps,
            bias: weights.conv_bias,
            out: self.all(work.mixed, config.conv_width()),
        };
        launch(executor, &conv.launch())?;
        let inner = self.all(work.inner, config.inner());
        let recurrence = Recurrence {
            config,
            mixed: Rows { values: conv.out, stride: config.conv_width() },
            dt: part(dt.start),
            dt_bias: weights.dt_bias,
            a: weights.a,
            d: weights.d,
            state: self.states.ssm(layer),
            spans: self.lists.spans,
            out: inner,
        };
        self.recur(executor, &recurrence)?;
        let gate = GatedNorm {
            y: inner,
            z: part(z.start),
            weight: weights.norm,
            out: inner,
            count: self.form.rows,
            groups: config.groups,
            epsilon: self.text.norm_epsilon,
        };
        launch(executor, &gate.launch())?;
        self.add(executor, &weights.out_proj, inner)
    }

    /// Token by token where a span has one, by chunks where it has more and there is a kernel for it.
    fn recur(&self, executor: &mut dyn Executor, all: &Recurrence<'_, P::Value, P::State>) -> Done {
        let (singles, longs) = (all.spans.first(self.form.singles), all.spans.from(self.form.singles));
        let chunked = match longs.is_empty() {
            true => None,
            false => P::chunked(&Recurrence { spans: longs, ..*all }),
        };
        let Some(chunked) = chunked else { return launch(executor, &all.launch()) };
        if !singles.is_empty() {
            launch(executor, &Recurrence { spans: singles, ..*all }.launch())?;
        }
        launch(executor, &chunked)
    }

    fn attention(
        &self,
        executor: &mut dyn Executor,
        layer: usize,
        weights: &AttentionWeights<P::Value>,
    ) -> Done {
        let [q, ..] = self.text.attention.widths();
        let stride = Widths::of(self.text).qkv;
        let qkv = Rows { values: self.all(self.work.wide, stride), stride };
        self.product(executor, &weights.qkv, self.work.normed, qkv)?;
        let attention = Attention {
            config: &self.text.attention,
            qkv,
            spans: self.lists.spans,
            pages: self.states.pages(layer, self.lists.table, self.form.table_stride),
            out: self.all(self.work.inner, q),
        };
        launch(executor, &attention.store(self.lists.span_of))?;
        self.attend(executor, &attention)?;
        self.add(executor, &weights.out, attention.out)
    }

    /// By the fast kernels where there is one for every span, the plain way otherwise.
    fn attend(&self, executor: &mut dyn Executor, all: &Attention<'_, P::Value>) -> Done {
        let (singles, longs) = (self.form.singles, self.form.longs);
        let [values, weights] = self.work.parts;
        let parts = Parts { values, weights, splits: self.form.splits, pages: self.limits.split_pages };
        let decode = P::decode(&Attention { spans: all.spans.first(singles), ..*all }, &parts);
        let mut behind = Attention { spans: all.spans.from(singles), ..*all };
        behind.pages.table = all.pages.table.from(singles * all.pages.table_stride);
        let prefill = P::prefill(&behind, self.lists.attend_tiles);
        let (Some(decode), Some(prefill)) = (decode, prefill) else {
            return launch(executor, &all.launch(self.lists.span_of));
        };
        if singles > 0 {
            decode.iter().try_for_each(|each| launch(executor, each))?;
        }
        if longs > 0 { launch(executor, &prefill) } else { Ok(()) }
    }

    fn mlp(&self, executor: &mut dyn Executor, weights: &MlpWeights<P::Value>) -> Done {
        let wide = self.squared(executor, &weights.up)?;
        self.add(executor, &weights.down, wide)
    }

    /// `max(W u, 0)^2` of the normed rows.
    fn squared(
        &self,
        executor: &mut dyn Executor,
        up: &Matrix<P::Value>,
    ) -> Result<View<P::Value>, ExecutorError> {
        let values = self.work.wide.first((self.form.rows * up.outputs).next_multiple_of(PACK));
        self.product(executor, up, self.work.normed, Rows { values, stride: up.outputs })?;
        launch(executor, &squared_relu(values))?;
        Ok(values)
    }

    /// Routing, the chosen experts, and the shared one on top.
    fn moe(&self, executor: &mut dyn Executor, weights: &MoeWeights<P::Value>) -> Done {
        let (config, work) = self
            .text
            .moe
            .as_ref()
            .zip(self.work.experts.as_ref())
            .expect("a model with expert layers says how many experts there are, and has room for them");
        let (rows, hidden) = (self.form.rows, self.text.hidden);
        let grouping = self.route(executor, config, work, weights)?;
        let [latent, summed] = work.latent;
        let width = config.latent.unwrap_or(hidden);
        let delta = self.all(self.work.delta, hidden);
        let input = match &weights.latent {
            Some([down, _]) => {
                let input = Rows { values: latent.first(rows * width), stride: width };
                self.product(executor, down, self.work.normed, input)?;
                input
            }
            None => Rows { values: self.all(self.work.normed, hidden), stride: hidden },
        };
        let experts = Experts {
            grouping: &grouping,
            input,
            width,
            inner: config.intermediate,
            up: weights.up,
            down: weights.down,
            weights: work.weights.first(grouping.chosen.len()),
            wide: work.wide,
            answered: work.answered,
            out: if weights.latent.is_some() { summed.first(rows * width) } else { delta },
        };
        P::experts(&experts).iter().try_for_each(|each| launch(executor, each))?;
        if let Some([_, up]) = &weights.latent {
            self.add(executor, up, experts.out)?;
        }
        let Some(MlpWeights { up, down }) = &weights.shared else { return Ok(()) };
        let wide = self.squared(executor, up)?;
        let (input, output) =
            (Rows { values: wide, stride: down.inputs }, Rows { values: delta, stride: hidden });
        self.multiply(executor, down, rows, (input, output), true)
    }

    /// Who goes where, in the order of experts.
    fn route(
        &self,
        executor: &mut dyn Executor,
        config: &MoeConfig,
        work: &ExpertWork<P>,
        weights: &MoeWeights<P::Value>,
    ) -> Result<Grouping, ExecutorError> {
        let (rows, experts, k) = (self.form.rows, config.experts, config.experts_per_token);
        let pairs = rows * k;
        let input = Rows { values: self.work.normed, stride: self.text.hidden };
        let logits = Rows { values: work.logits.first(rows * experts), stride: experts };
        self.multiply(executor, &weights.gate, rows, (input, logits), false)?;
        let route = Route {
            config,
            logits: logits.values,
            correction: weights.correction,
            chosen: work.chosen.first(pairs),
            weights: work.weights.first(pairs),
        };
        launch(executor, &route.launch())?;
        let grouping = Grouping {
            experts,
            k,
            chosen: route.chosen,
            order: work.order.first(pairs),
            place: work.place.first(pairs),
            offsets: work.offsets,
            tiles: work.tiles.first(tiles_max(experts, pairs)),
        };
        grouping.launches().iter().try_for_each(|each| launch(executor, each))?;
        Ok(grouping)
    }

    /// The last norm and the output head, for the wanted rows only.
    fn head(&self, executor: &mut dyn Executor) -> Done {
        let (hidden, wanted) = (self.text.hidden, self.form.wanted);
        if wanted == 0 {
            return Ok(());
        }
        let norm = ResidualRmsNorm {
            residual: self.all(self.work.hidden, hidden),
            delta: Some(self.all(self.work.delta, hidden)),
            rows: Some(self.lists.wanted),
            weight: self.weights.final_norm,
            out: self.work.last.first(wanted * hidden),
            count: wanted,
            epsilon: self.text.norm_epsilon,
        };
        launch(executor, &norm.launch())?;
        let head = &self.weights.head;
        let logits = self.work.logits.from(self.logits_at * head.outputs);
        let input = Rows { values: norm.out, stride: hidden };
        let output = Rows { values: logits, stride: head.outputs };
        self.multiply(executor, head, wanted, (input, output), false)
    }

    /// All rows of a buffer.
    fn all<T: crate::launch::Element>(&self, buffer: View<T>, width: usize) -> View<T> {
        buffer.first(self.form.rows * width)
    }

    fn product(
        &self,
        executor: &mut dyn Executor,
        matrix: &Matrix<P::Value>,
        input: View<P::Value>,
        output: Rows<P::Value>,
    ) -> Done {
        let input = Rows { values: input, stride: matrix.inputs };
        self.multiply(executor, matrix, self.form.rows, (input, output), false)
    }

    /// `count` rows of a product; `adds`: added to what the outputs hold. A matrix in float32 in a model of bfloat16 takes its inputs widened, and its outputs are
    /// narrowed where they are not float32.
    fn multiply<O: Stored>(
        &self,
        executor: &mut dyn Executor,
        matrix: &Matrix<P::Value>,
        count: usize,
        (input, output): (Rows<P::Value>, Rows<O>),
        adds: bool,
    ) -> Done {
        let Some(wide) = matrix.widened() else {
            let product = matrix.product(count, input, output);
            return executor.multiply(Lane::Batch, &if adds { product.onto_outputs() } else { product });
        };
        let [inputs, outputs] = self.work.widened;
        let inputs = Rows { values: inputs, stride: wide.inputs };
        launch(executor, &convert::widen(as_type(input), inputs.values, count, wide.inputs))?;
        if Number::of::<O>() == Number::F32 {
            let product = wide.product(count, inputs, as_type::<_, f32>(output));
            return executor.multiply(Lane::Batch, &if adds { product.onto_outputs() } else { product });
        }
        let given = Rows { values: outputs, stride: wide.outputs };
        executor.multiply(Lane::Batch, &wide.product(count, inputs, given))?;
        launch(executor, &convert::narrow(outputs, as_type(output), count, wide.outputs, adds))
    }

    /// A mixer's last product: what the next norm adds to the residual stream.
    fn add(&self, executor: &mut dyn Executor, matrix: &Matrix<P::Value>, input: View<P::Value>) -> Done {
        let stride = self.text.hidden;
        self.product(executor, matrix, input, Rows { values: self.all(self.work.delta, stride), stride })
    }
}

/// The same rows by the name of their type.
fn as_type<A: Stored, B: Stored>(rows: Rows<A>) -> Rows<B> {
    assert_eq!(Number::of::<A>(), Number::of::<B>(), "only a model in bfloat16 has matrices in another type");
    Rows { values: View::new(rows.values.address(), rows.values.len()), stride: rows.stride }
}

fn launch(executor: &mut dyn Executor, launch: &Launch) -> Done {
    executor.launch(Lane::Batch, launch)
}

mod fast {
    //! Which combination of types has which kernels.

    use half::bf16;

    use super::{Attention, Experts, Fast, Launch, Parts, Recurrence, View};
    use crate::launch::Tile;
    use crate::types::{Bfloat16, Float32, NarrowState, WideResidual};

    impl Fast for Float32 {
        fn chunked(_: &Recurrence<'_, f32, f32>) -> Option<Launch> {
            None
        }
        fn decode(_: &Attention<'_, f32>, _: &Parts) -> Option<[Launch; 2]> {
            None
        }
        fn prefill(_: &Attention<'_, f32>, _: View<Tile>) -> Option<Launch> {
            None
        }
        fn experts(experts: &Experts<'_, f32>) -> [Launch; 3] {
            experts.launches()
        }
    }

    macro_rules! in_bf16 {
        ($($types:ty: $state:ty),*) => {$(
            impl Fast for $types {
                fn chunked(recurrence: &Recurrence<'_, bf16, $state>) -> Option<Launch> {
                    recurrence.launch_chunked()
                }
                fn decode(attention: &Attention<'_, bf16>, parts: &Parts) -> Option<[Launch; 2]> {
                    attention.decode(parts)
                }
                fn prefill(attention: &Attention<'_, bf16>, tiles: View<Tile>) -> Option<Launch> {
                    attention.prefill(tiles)
                }
                fn experts(experts: &Experts<'_, bf16>) -> [Launch; 3] {
                    experts.launches_by_tiles().unwrap_or_else(|| experts.launches())
                }
            }
        )*};
    }

    in_bf16!(Bfloat16: f32, WideResidual: f32, NarrowState: bf16);
}
