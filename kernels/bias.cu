// Bias of y(K,J): one number a row; J is N*P*Q behind a convolution, N behind a dense layer.

extern "C" __global__ void add_bias(float* __restrict__ y, const float* __restrict__ b, i64 K, i64 J) {
  ROW_LOOP(k, j, K, J) y[k * J + j] += b[k];
}

// Fused with ReLU. NaN stays NaN, as in relu (activation.cu).
extern "C" __global__ void bias_relu(float* __restrict__ y, const float* __restrict__ b, i64 K, i64 J) {
  ROW_LOOP(k, j, K, J) {
    const float v = y[k * J + j] + b[k];
    y[k * J + j] = v <= 0.f ? 0.f : v;
  }
}
