// Activations and their gradients from the output y alone, so that the input need not be kept.
// Element i of every output depends on element i of the inputs only: y may be x, dx may be dy.

// NaN stays NaN: a network that has diverged must not look like one that is silent.
extern "C" __global__ void relu(const float* x, float* y, i64 n) {
  GRID_STRIDE_LOOP(i, n) y[i] = x[i] <= 0.f ? 0.f : x[i];
}

extern "C" __global__ void relu_backward(const float* y, const float* dy, float* dx, i64 n) {
  GRID_STRIDE_LOOP(i, n) dx[i] = y[i] <= 0.f ? 0.f : dy[i];
}

extern "C" __global__ void sigmoid(const float* x, float* y, i64 n) {
  GRID_STRIDE_LOOP(i, n) y[i] = 1.f / (1.f + expf(-x[i]));
}

extern "C" __global__ void sigmoid_backward(const float* y, const float* dy, float* dx, i64 n) {
  GRID_STRIDE_LOOP(i, n) dx[i] = dy[i] * y[i] * (1.f - y[i]);
}
