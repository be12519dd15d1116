//! A mixture of experts: the router's choice, `kernels/moe_route.cu`; rows grouped by expert, their
//! products and sums, `kernels/moe_experts.cu`.

use furrow_model::config::MoeConfig;
use half::bf16;

use super::{DeviceRows, PACK};
use crate::launch::{DeviceView, KernelLaunch, SpanTile, StoredElement, shared_bytes, size};

/// Rows of a block of the router.
const ROUTE_ROWS: usize = 4;
/// Largest shared memory that needs no attribute.
const SHARED_MAX: u32 = 48 << 10;
/// Most experts of the router: 4 rows of 512, with as many choices and groups, take 40 KiB of
/// shared memory.
pub const EXPERTS_MAX: usize = 512;
/// Pairs of a tile.
pub const TILE_ROWS: usize = 64;
/// Columns of a block of the product by tiles, and of the input in each step.
const COLUMNS: usize = 64;
/// Padding of rows in shared memory, so that eight of them begin in eight different banks.
const PAD: usize = 8;

/// The router after its product.
#[derive(Debug, Clone, Copy)]
pub struct RouteLaunch<'a> {
    /// Experts, groups and the rule for weights.
    pub config: &'a MoeConfig,
    /// The router's product, `[m, experts]`.
    pub logits: DeviceView<f32>,
    /// Added to scores for the choice, `[experts]`.
    pub correction: DeviceView<f32>,
    /// Chosen experts, `[m, k]`, ascending.
    pub chosen: DeviceView<u32>,
    /// Weight of each choice, `[m, k]`.
    pub weights: DeviceView<f32>,
}

impl RouteLaunch<'_> {
    pub fn launch(&self) -> KernelLaunch {
        let MoeConfig { experts, experts_per_token: k, groups, groups_kept, normalise, scaling, .. } =
            *self.config;
        let rows = self.chosen.len() / k;
        assert!(
            k <= experts && experts.is_multiple_of(groups),
            "{k} of {experts} experts in {groups} groups"
        );
        assert!(self.logits.len() >= rows * experts && self.correction.len() >= experts, "{experts} logits");
        assert!(self.weights.len() >= rows * k, "one weight for each choice");
        let shared_bytes = shared_bytes(&[
            (ROUTE_ROWS * experts, 4),
            (ROUTE_ROWS * experts, 4),
            (ROUTE_ROWS * groups, 4),
            (ROUTE_ROWS * k, 4),
            (ROUTE_ROWS * k, 4),
        ]);
        assert!(shared_bytes <= SHARED_MAX, "{experts} experts do not fit the router's shared memory");
        KernelLaunch {
            file: "moe_route.cu",
            kernel: "route",
            grid: [size(rows.div_ceil(ROUTE_ROWS)), 1, 1],
            threads: size(ROUTE_ROWS * 32),
            shared_bytes,
            arguments: vec![
                self.logits.into(),
                self.correction.into(),
                size(rows).into(),
                size(experts).into(),
                size(groups).into(),
                size(groups_kept).into(),
                u32::from(normalise).into(),
                scaling.into(),
                size(k).into(),
                self.chosen.into(),
                self.weights.into(),
            ],
        }
    }
}

/// The rows' choices, sorted by expert. A pair is a row and one expert that it chose.
#[derive(Debug, Clone, Copy)]
pub struct ExpertGrouping {
    /// Experts of a layer.
    pub experts: usize,
    /// Experts a row chose.
    pub k: usize,
    /// What the router chose, `[m, k]`.
    pub chosen: DeviceView<u32>,
    /// Scratch: pairs, one expert after another, `[m k]`.
    pub order: DeviceView<u32>,
    /// Scratch: sorted index of each pair, `[m k]`.
    pub sorted_index: DeviceView<u32>,
    /// Scratch: first pair of each expert, `[experts + 1]`.
    pub offsets: DeviceView<u32>,
    /// Scratch: groups of at most [`TILE_ROWS`] pairs of one expert, [`tiles_max`] of them.
    pub tiles: DeviceView<SpanTile>,
}

/// Most tiles that `pairs` pairs can make: each chosen expert may have one that is not full.
pub fn tiles_max(experts: usize, pairs: usize) -> usize {
    pairs / TILE_ROWS + experts.min(pairs)
}

impl ExpertGrouping {
    /// The launches, in order.
    pub fn launches(&self) -> [KernelLaunch; 2] {
        let Self { experts, k, chosen, order, sorted_index, offsets, tiles } = *self;
        let pairs = chosen.len();
        assert!(experts > 0 && k > 0 && pairs.is_multiple_of(k), "{k} choices a row");
        assert!(order.len() >= pairs && sorted_index.len() >= pairs, "buffers for {pairs} pairs");
        assert!(offsets.len() > experts, "offsets of {experts} experts");
        assert!(tiles.len() >= tiles_max(experts, pairs), "a buffer for the tiles");
        let launch = |kernel, blocks, arguments| KernelLaunch {
            file: "moe_experts.cu",
            kernel,
            grid: [size(blocks), 1, 1],
            threads: 256,
            shared_bytes: shared_bytes(&[(2 * 32, 4)]),
            arguments,
        };
        let group =
            vec![chosen.into(), size(pairs).into(), order.into(), sorted_index.into(), offsets.into()];
        let cut = vec![offsets.into(), size(experts).into(), tiles.into(), size(tiles.len()).into()];
        [launch("group_rows", experts, group), launch("cut_tiles", 1, cut)]
    }
}

/// The experts' MLPs over grouped rows.
#[derive(Debug, Clone, Copy)]
pub struct ExpertsLaunch<'a, T> {
    pub grouping: &'a ExpertGrouping,
    /// Input of the experts: the layer's input, or its latent form.
    pub input: DeviceRows<T>,
    /// Values of an input row, and of an expert's output row.
    pub width: usize,
    /// Inner width of an expert.
    pub inner: usize,
    pub up: DeviceView<T>,
    pub down: DeviceView<T>,
    /// Weight of each choice, `[m, k]`.
    pub weights: DeviceView<f32>,
    /// Scratch: between the products, `[m k, inner]`.
    pub wide: DeviceView<T>,
    /// Scratch: outputs of the experts, `[m k, width]`.
    pub answered: DeviceView<f32>,
    /// The weighted sum of each row's experts, `[m, width]`.
    pub out: DeviceView<T>,
}

impl<T: StoredElement> ExpertsLaunch<'_, T> {
    /// The kernels for any type and sizes: up, down, sum.
    pub fn launches(&self) -> [KernelLaunch; 3] {
        let columns = |width: usize| (width.div_ceil(128), 128, 0);
        let up = T::pick("experts_up_f32", "experts_up_bf16");
        let down = T::pick("experts_down_f32", "experts_down_bf16");
        [self.up(up, columns(self.inner)), self.down(down, columns(self.width)), self.join()]
    }

    fn up(&self, kernel: &'static str, blocks: (usize, usize, u32)) -> KernelLaunch {
        let width = self.width;
        let inner = self.inner;
        self.input.assert_width(width, "input of experts");
        assert!(self.up.len() >= self.grouping.experts * width * inner, "a matrix for each expert");
        assert!(self.wide.len() >= self.grouping.chosen.len() * inner, "a buffer between the products");
        let [values, stride] = self.input.arguments();
        let weights_and_out = [self.up.into(), self.wide.into()];
        self.product(kernel, blocks, [values, stride], weights_and_out, [width, inner])
    }

    fn down(&self, kernel: &'static str, blocks: (usize, usize, u32)) -> KernelLaunch {
        let width = self.width;
        let inner = self.inner;
        assert!(self.down.len() >= self.grouping.experts * width * inner, "a matrix for each expert");
        assert!(
            self.answered.len() >= self.grouping.chosen.len() * width,
            "a buffer for the experts' outputs"
        );
        let weights_and_out = [self.down.into(), self.answered.into()];
        self.product(kernel, blocks, [self.wide.into(), size(inner).into()], weights_and_out, [inner, width])
    }

    /// `blocks`: columns, threads and bytes of shared memory of each. `sizes`: of an input row and
    /// of an output row.
    fn product(
        &self,
        kernel: &'static str,
        (columns, threads, shared_bytes): (usize, usize, u32),
        [values, stride]: [crate::launch::KernelArgument; 2],
        [weights, out]: [crate::launch::KernelArgument; 2],
        sizes: [usize; 2],
    ) -> KernelLaunch {
        let ExpertGrouping { k, order, offsets, tiles, .. } = *self.grouping;
        KernelLaunch {
            file: "moe_experts.cu",
            kernel,
            grid: [size(columns), size(tiles.len()), 1],
            threads: size(threads),
            shared_bytes,
            arguments: vec![
                values,
                stride,
                order.into(),
                size(k).into(),
                tiles.into(),
                offsets.into(),
                weights,
                out,
                size(sizes[0]).into(),
                size(sizes[1]).into(),
            ],
        }
    }

    fn join(&self) -> KernelLaunch {
        let ExpertGrouping { k, chosen, sorted_index, .. } = *self.grouping;
        let rows = chosen.len() / k;
        assert!(self.weights.len() >= chosen.len(), "one weight for each choice");
        assert!(self.out.len() >= rows * self.width, "output for {rows} rows");
        KernelLaunch {
            file: "moe_experts.cu",
            kernel: T::pick("join_experts_f32", "join_experts_bf16"),
            grid: [size(rows), 1, 1],
            threads: 256,
            shared_bytes: 0,
            arguments: vec![
                self.answered.into(),
                sorted_index.into(),
                self.weights.into(),
                size(k).into(),
                self.out.into(),
                size(self.width).into(),
            ],
        }
    }
}

impl ExpertsLaunch<'_, bf16> {
    /// The kernels with matrix instructions; `None` if a size is not a multiple of 64 or rows do
    /// not begin at packs.
    pub fn launches_by_tiles(&self) -> Option<[KernelLaunch; 3]> {
        let fits = |width: usize| width.is_multiple_of(COLUMNS);
        if !fits(self.width) || !fits(self.inner) || !self.input.stride.is_multiple_of(PACK) {
            return None;
        }
        // Rows of x and of W for two steps.
        let shared_bytes = shared_bytes(&[(2 * (TILE_ROWS + COLUMNS) * (COLUMNS + PAD), 2)]);
        let columns = |width: usize| (width / COLUMNS, 128, shared_bytes);
        let up = self.up("experts_up_tiles", columns(self.inner));
        Some([up, self.down("experts_down_tiles", columns(self.width)), self.join()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_max_covers_every_choice_of_experts() {
        // Three experts, each chosen by one row more than fills its tiles; fewer pairs than
        // experts; one expert with all rows.
        for (experts, counts) in
            [(3, vec![65, 65, 65]), (8, vec![1, 1]), (4, vec![64 * 9 + 1]), (2, vec![0, 64])]
        {
            let tiles: usize = counts.iter().map(|count: &usize| count.div_ceil(TILE_ROWS)).sum();
            assert!(tiles <= tiles_max(experts, counts.iter().sum()), "{experts} experts, {counts:?}");
        }
    }
}
