//! One batch through all layers, as launches and products on a lane.
//!
//! Lower bound: every weight is read once a batch (24.6 GB in bfloat16 for the 12B: 5.7 ms at 4.3
//! TB/s), and every row takes two operations a weight (23.3 GFLOP a token); states, keys and values
//! are read and written once a row. Everything else here is small in comparison.
//!
//! Nothing here depends on a value: the shape of the batch determines which kernels run and on how
//! many rows. A batch of the same shape has the same launches with the same parameters, so it can
//! be recorded once.

use furrow_model::config::{MoeConfig, TextConfig};

use crate::batch::{BatchForm, BatchLists};
use crate::executor::{DeviceMatrix, ElementType, ExecutionLane, Executor, ExecutorError};
use crate::launch::{DeviceView, KernelLaunch, StoredElement};
use crate::ops::DeviceRows;
use crate::ops::attention::{AttentionLaunch, SplitBuffers};
use crate::ops::conv::CausalConvLaunch;
use crate::ops::convert;
use crate::ops::embed::EmbedLaunch;
use crate::ops::mlp::squared_relu;
use crate::ops::moe::{ExpertGrouping, ExpertsLaunch, RouteLaunch, tiles_max};
use crate::ops::norm::{GatedNorm, ResidualRmsNorm};
use crate::ops::ssm::SsmRecurrence;
use crate::state::StateBuffers;
use crate::types::ModelTypes;
use crate::weights::{
    DeviceAttentionWeights, DeviceMixer, DeviceMlpWeights, DeviceMoeWeights, DeviceSsmWeights,
    DeviceTextWeights,
};
use crate::work::{BatchBuffers, BatchLimits, ExpertWork, ProjectionWidths};

/// Values that `squared_relu` takes at a time.
const PACK: usize = 8;

/// Result of submitting a layer's work.
pub(crate) type LaunchResult = Result<(), ExecutorError>;

/// Kernels that exist for bfloat16 only, for the combinations of types that have them.
pub(crate) trait FastKernels: ModelTypes + Sized {
    /// The recurrence by chunks.
    fn chunked(recurrence: &SsmRecurrence<'_, Self::Value, Self::State>) -> Option<KernelLaunch>;
    /// Attention of one new token a span.
    fn decode(
        attention: &AttentionLaunch<'_, Self::Value>,
        parts: &SplitBuffers,
    ) -> Option<[KernelLaunch; 2]>;
    /// Attention of many new tokens.
    fn prefill(
        attention: &AttentionLaunch<'_, Self::Value>,
        tiles: DeviceView<crate::launch::SpanTile>,
    ) -> Option<KernelLaunch>;
    fn experts(experts: &ExpertsLaunch<'_, Self::Value>) -> [KernelLaunch; 3];
}

/// Everything a batch needs.
pub(crate) struct DevicePass<'a, P: ModelTypes> {
    pub text: &'a TextConfig,
    pub weights: &'a DeviceTextWeights<P::Value>,
    /// Rows of all tile features.
    pub features: DeviceView<P::Value>,
    pub states: &'a StateBuffers<P>,
    pub work: &'a BatchBuffers<P>,
    pub limits: &'a BatchLimits,
    pub form: BatchForm,
    pub lists: BatchLists,
    /// Row for the first requested logits.
    pub logits_at: usize,
}

impl<P: FastKernels> DevicePass<'_, P> {
    /// Embeds, runs the layers, and leaves the logits of the requested rows in the workspace.
    pub(crate) fn run(&self, executor: &mut dyn Executor) -> LaunchResult {
        let mut ssm = 0;
        let mut attention = 0;
        self.embed(executor)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.enter(executor, layer.norm, index > 0)?;
            match &layer.mixer {
                DeviceMixer::Ssm(weights) => {
                    self.ssm(executor, ssm, weights)?;
                    ssm += 1;
                }
                DeviceMixer::Attention(weights) => {
                    self.attention(executor, attention, weights)?;
                    attention += 1;
                }
                DeviceMixer::Mlp(weights) => self.mlp(executor, weights)?,
                DeviceMixer::Moe(weights) => self.moe(executor, weights)?,
            }
        }
        self.head(executor)
    }

    fn embed(&self, executor: &mut dyn Executor) -> LaunchResult {
        let embed = EmbedLaunch {
            table: self.weights.embeddings.values,
            features: self.features,
            sources: self.lists.sources,
            out: self.all(self.work.hidden, self.text.hidden),
            width: self.text.hidden,
        };
        launch(executor, &embed.launch())
    }

    /// Adds the previous layer's output to the residual stream, and norms it.
    fn enter(
        &self,
        executor: &mut dyn Executor,
        weight: DeviceView<P::Value>,
        after_a_layer: bool,
    ) -> LaunchResult {
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

    fn ssm(
        &self,
        executor: &mut dyn Executor,
        layer: usize,
        weights: &DeviceSsmWeights<P::Value>,
    ) -> LaunchResult {
        let config = &self.text.ssm;
        let work = self.work;
        let stride = ProjectionWidths::of(self.text).projected;
        let [z, mixed, dt] = config.parts();
        let projected = DeviceRows { values: self.all(work.wide, stride), stride };
        self.product(executor, &weights.in_proj, work.normed, projected)?;
        let part = |from: usize| DeviceRows { values: projected.values.from(from), stride };
        let conv = CausalConvLaunch {
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
        let recurrence = SsmRecurrence {
            config,
            mixed: DeviceRows { values: conv.out, stride: config.conv_width() },
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

    /// Token by token for spans of one token; by chunks for longer spans, if there is a kernel.
    fn recur(
        &self,
        executor: &mut dyn Executor,
        all: &SsmRecurrence<'_, P::Value, P::State>,
    ) -> LaunchResult {
        let singles = all.spans.first(self.form.singles);
        let longs = all.spans.from(self.form.singles);
        let chunked = match longs.is_empty() {
            true => None,
            false => P::chunked(&SsmRecurrence { spans: longs, ..*all }),
        };
        let Some(chunked) = chunked else { return launch(executor, &all.launch()) };
        if !singles.is_empty() {
            launch(executor, &SsmRecurrence { spans: singles, ..*all }.launch())?;
        }
        launch(executor, &chunked)
    }

    fn attention(
        &self,
        executor: &mut dyn Executor,
        layer: usize,
        weights: &DeviceAttentionWeights<P::Value>,
    ) -> LaunchResult {
        let [q, ..] = self.text.attention.widths();
        let stride = ProjectionWidths::of(self.text).qkv;
        let qkv = DeviceRows { values: self.all(self.work.wide, stride), stride };
        self.product(executor, &weights.qkv, self.work.normed, qkv)?;
        let attention = AttentionLaunch {
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

    /// With the fast kernels if they cover every span, otherwise with the plain one.
    fn attend(&self, executor: &mut dyn Executor, all: &AttentionLaunch<'_, P::Value>) -> LaunchResult {
        let singles = self.form.singles;
        let longs = self.form.longs;
        let [values, weights] = self.work.parts;
        let parts =
            SplitBuffers { values, weights, splits: self.form.splits, pages: self.limits.split_pages };
        let decode = P::decode(&AttentionLaunch { spans: all.spans.first(singles), ..*all }, &parts);
        let mut behind = AttentionLaunch { spans: all.spans.from(singles), ..*all };
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

    fn mlp(&self, executor: &mut dyn Executor, weights: &DeviceMlpWeights<P::Value>) -> LaunchResult {
        let wide = self.squared(executor, &weights.up)?;
        self.add(executor, &weights.down, wide)
    }

    /// `max(W u, 0)^2` of the normed rows.
    fn squared(
        &self,
        executor: &mut dyn Executor,
        up: &DeviceMatrix<P::Value>,
    ) -> Result<DeviceView<P::Value>, ExecutorError> {
        let values = self.work.wide.first((self.form.rows * up.outputs).next_multiple_of(PACK));
        self.product(executor, up, self.work.normed, DeviceRows { values, stride: up.outputs })?;
        launch(executor, &squared_relu(values))?;
        Ok(values)
    }

    /// Routing, the chosen experts, and the shared expert added.
    fn moe(&self, executor: &mut dyn Executor, weights: &DeviceMoeWeights<P::Value>) -> LaunchResult {
        let (config, work) = self
            .text
            .moe
            .as_ref()
            .zip(self.work.experts.as_ref())
            .expect("a model with expert layers has their sizes and a workspace for them");
        let rows = self.form.rows;
        let hidden = self.text.hidden;
        let grouping = self.route(executor, config, work, weights)?;
        let [latent, summed] = work.latent;
        let width = config.latent.unwrap_or(hidden);
        let delta = self.all(self.work.delta, hidden);
        let input = match &weights.latent {
            Some([down, _]) => {
                let input = DeviceRows { values: latent.first(rows * width), stride: width };
                self.product(executor, down, self.work.normed, input)?;
                input
            }
            None => DeviceRows { values: self.all(self.work.normed, hidden), stride: hidden },
        };
        let experts = ExpertsLaunch {
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
        let Some(DeviceMlpWeights { up, down }) = &weights.shared else { return Ok(()) };
        let wide = self.squared(executor, up)?;
        let input = DeviceRows { values: wide, stride: down.inputs };
        let output = DeviceRows { values: delta, stride: hidden };
        self.multiply(executor, down, rows, (input, output), true)
    }

    /// Routes rows to experts, and sorts the pairs by expert.
    fn route(
        &self,
        executor: &mut dyn Executor,
        config: &MoeConfig,
        work: &ExpertWork<P>,
        weights: &DeviceMoeWeights<P::Value>,
    ) -> Result<ExpertGrouping, ExecutorError> {
        let rows = self.form.rows;
        let experts = config.experts;
        let k = config.experts_per_token;
        let pairs = rows * k;
        let input = DeviceRows { values: self.work.normed, stride: self.text.hidden };
        let logits = DeviceRows { values: work.logits.first(rows * experts), stride: experts };
        self.multiply(executor, &weights.gate, rows, (input, logits), false)?;
        let route = RouteLaunch {
            config,
            logits: logits.values,
            correction: weights.correction,
            chosen: work.chosen.first(pairs),
            weights: work.weights.first(pairs),
        };
        launch(executor, &route.launch())?;
        let grouping = ExpertGrouping {
            experts,
            k,
            chosen: route.chosen,
            order: work.order.first(pairs),
            sorted_index: work.sorted_index.first(pairs),
            offsets: work.offsets,
            tiles: work.tiles.first(tiles_max(experts, pairs)),
        };
        grouping.launches().iter().try_for_each(|each| launch(executor, each))?;
        Ok(grouping)
    }

    /// The last norm and the output head, only for rows whose logits are needed.
    fn head(&self, executor: &mut dyn Executor) -> LaunchResult {
        let hidden = self.text.hidden;
        let wanted = self.form.wanted;
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
        let input = DeviceRows { values: norm.out, stride: hidden };
        let output = DeviceRows { values: logits, stride: head.outputs };
        self.multiply(executor, head, wanted, (input, output), false)
    }

    /// All rows of a buffer.
    fn all<T: crate::launch::DeviceElement>(&self, buffer: DeviceView<T>, width: usize) -> DeviceView<T> {
        buffer.first(self.form.rows * width)
    }

    fn product(
        &self,
        executor: &mut dyn Executor,
        matrix: &DeviceMatrix<P::Value>,
        input: DeviceView<P::Value>,
        output: DeviceRows<P::Value>,
    ) -> LaunchResult {
        let input = DeviceRows { values: input, stride: matrix.inputs };
        self.multiply(executor, matrix, self.form.rows, (input, output), false)
    }

    /// A product with `count` rows; `adds`: added to the contents of the output. A float32 matrix
    /// in a bfloat16 model takes widened inputs, and its outputs are narrowed unless they are
    /// float32.
    fn multiply<O: StoredElement>(
        &self,
        executor: &mut dyn Executor,
        matrix: &DeviceMatrix<P::Value>,
        count: usize,
        (input, output): (DeviceRows<P::Value>, DeviceRows<O>),
        adds: bool,
    ) -> LaunchResult {
        let Some(wide) = matrix.widened() else {
            let product = matrix.product(count, input, output);
            return executor
                .multiply(ExecutionLane::Batch, &if adds { product.onto_outputs() } else { product });
        };
        let [inputs, outputs] = self.work.widened;
        let inputs = DeviceRows { values: inputs, stride: wide.inputs };
        launch(executor, &convert::widen(as_type(input), inputs.values, count, wide.inputs))?;
        if ElementType::of::<O>() == ElementType::F32 {
            let product = wide.product(count, inputs, as_type::<_, f32>(output));
            return executor
                .multiply(ExecutionLane::Batch, &if adds { product.onto_outputs() } else { product });
        }
        let given = DeviceRows { values: outputs, stride: wide.outputs };
        executor.multiply(ExecutionLane::Batch, &wide.product(count, inputs, given))?;
        launch(executor, &convert::narrow(outputs, as_type(output), count, wide.outputs, adds))
    }

    /// A mixer's last product, which the next norm adds to the residual stream.
    fn add(
        &self,
        executor: &mut dyn Executor,
        matrix: &DeviceMatrix<P::Value>,
        input: DeviceView<P::Value>,
    ) -> LaunchResult {
        let stride = self.text.hidden;
        self.product(
            executor,
            matrix,
            input,
            DeviceRows { values: self.all(self.work.delta, stride), stride },
        )
    }
}

/// The same rows with the concrete name of their type.
fn as_type<A: StoredElement, B: StoredElement>(rows: DeviceRows<A>) -> DeviceRows<B> {
    assert_eq!(
        ElementType::of::<A>(),
        ElementType::of::<B>(),
        "only a bfloat16 model has matrices of another type"
    );
    DeviceRows { values: DeviceView::new(rows.values.address(), rows.values.len()), stride: rows.stride }
}

fn launch(executor: &mut dyn Executor, launch: &KernelLaunch) -> LaunchResult {
    executor.launch(ExecutionLane::Batch, launch)
}

mod fast {
    //! The kernels of each combination of types.

    use half::bf16;

    use super::{
        AttentionLaunch, DeviceView, ExpertsLaunch, FastKernels, KernelLaunch, SplitBuffers, SsmRecurrence,
    };
    use crate::launch::SpanTile;
    use crate::types::{Bfloat16Types, Float32Types, NarrowState, WideResidual};

    impl FastKernels for Float32Types {
        fn chunked(_: &SsmRecurrence<'_, f32, f32>) -> Option<KernelLaunch> {
            None
        }
        fn decode(_: &AttentionLaunch<'_, f32>, _: &SplitBuffers) -> Option<[KernelLaunch; 2]> {
            None
        }
        fn prefill(_: &AttentionLaunch<'_, f32>, _: DeviceView<SpanTile>) -> Option<KernelLaunch> {
            None
        }
        fn experts(experts: &ExpertsLaunch<'_, f32>) -> [KernelLaunch; 3] {
            experts.launches()
        }
    }

    macro_rules! in_bf16 {
        ($($types:ty: $state:ty),*) => {$(
            impl FastKernels for $types {
                fn chunked(recurrence: &SsmRecurrence<'_, bf16, $state>) -> Option<KernelLaunch> {
                    recurrence.launch_chunked()
                }
                fn decode(attention: &AttentionLaunch<'_, bf16>, parts: &SplitBuffers) -> Option<[KernelLaunch; 2]> {
                    attention.decode(parts)
                }
                fn prefill(attention: &AttentionLaunch<'_, bf16>, tiles: DeviceView<SpanTile>) -> Option<KernelLaunch> {
                    attention.prefill(tiles)
                }
                fn experts(experts: &ExpertsLaunch<'_, bf16>) -> [KernelLaunch; 3] {
                    experts.launches_by_tiles().unwrap_or_else(|| experts.launches())
                }
            }
        )*};
    }

    in_bf16!(Bfloat16Types: f32, WideResidual: f32, NarrowState: bf16);
}
