//! A plain transformer for the same task, for comparison: every layer keeps keys and values of
//! every token.

use super::{BF16, ModelWork, WorkPart, product};

/// A vision-language transformer with a gated MLP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transformer {
    /// How it is called.
    pub name: &'static str,
    /// Layers, each attention and MLP.
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Width of the gated MLP.
    pub intermediate: usize,
    pub vocabulary: usize,
    /// Blocks of the vision tower, their width and MLP width.
    pub tower: (usize, usize, usize),
    /// Side in pixels of the area of one token.
    pub token_side: usize,
}

impl Transformer {
    /// Shapes of Holo2-8B, which keeps the published shape of Qwen3-VL-8B: 36 layers of width
    /// 4,096, 8 KV heads for 32 heads, patches of 16 pixels merged two by two.
    pub const HOLO2_8B: Transformer = Transformer {
        name: "a transformer of the class of Holo2-8B",
        layers: 36,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 12_288,
        vocabulary: 151_936,
        tower: (27, 1152, 4304),
        token_side: 32,
    };

    fn kv_bytes(&self) -> f64 {
        (self.layers * 2 * self.kv_heads * self.head_dim) as f64 * BF16
    }

    fn products(&self, rows: f64) -> Vec<WorkPart> {
        let layers = self.layers as f64;
        let queries = self.heads * self.head_dim;
        let kv = self.kv_heads * self.head_dim;
        let values = (self.layers * 8 * self.hidden) as f64;
        vec![
            product("q, k, v", layers, rows, self.hidden, queries + 2 * kv),
            product("attention out", layers, rows, queries, self.hidden),
            product("MLP gate and up", layers, rows, self.hidden, 2 * self.intermediate),
            product("MLP down", layers, rows, self.intermediate, self.hidden),
            WorkPart { name: "other activations", bytes: rows * values * BF16, flops: 0.0 },
        ]
    }

    fn attention(&self, new: f64, keys: f64, read: f64) -> WorkPart {
        let queries = (self.heads * self.head_dim * self.layers) as f64;
        WorkPart { name: "keys and values", bytes: read * self.kv_bytes(), flops: 4.0 * new * keys * queries }
    }
}

impl ModelWork for Transformer {
    fn decode(&self, batch: f64, context: f64) -> Vec<WorkPart> {
        let mut parts = self.products(batch);
        parts.push(self.attention(batch, context, batch * (context + 1.0)));
        parts.push(product("output head", 1.0, batch, self.hidden, self.vocabulary));
        parts
    }

    fn prefill(&self, new: f64, past: f64) -> Vec<WorkPart> {
        let mut parts = self.products(new);
        parts.push(self.attention(new, past + new / 2.0, past + new));
        parts.push(product("output head", 1.0, 1.0, self.hidden, self.vocabulary));
        parts
    }

    fn vision(&self, width: usize, height: usize) -> Vec<WorkPart> {
        let rows = 4.0 * self.screenshot_tokens(width, height) as f64;
        let (blocks, hidden, intermediate) = self.tower;
        let layers = blocks as f64;
        vec![
            product("tower q, k, v and out", layers, rows, hidden, 4 * hidden),
            product("tower MLP up", layers, rows, hidden, intermediate),
            product("tower MLP down", layers, rows, intermediate, hidden),
            WorkPart {
                name: "tower attention",
                bytes: 0.0,
                flops: 4.0 * rows * rows * hidden as f64 * layers,
            },
        ]
    }

    fn screenshot_tokens(&self, width: usize, height: usize) -> usize {
        // Sides are rounded to whole tokens.
        let side = |pixels: usize| ((pixels + self.token_side / 2) / self.token_side).max(1);
        side(width) * side(height)
    }

    fn weight_bytes(&self) -> f64 {
        let weights: f64 = self.products(0.0).iter().map(|part| part.bytes).sum();
        let (blocks, hidden, intermediate) = self.tower;
        let tower = (blocks * (4 * hidden * hidden + 2 * hidden * intermediate)) as f64 * BF16;
        weights + 2.0 * (self.hidden * self.vocabulary) as f64 * BF16 + tower
    }

    fn session_bytes(&self, context: f64) -> f64 {
        context * self.kv_bytes()
    }
}
