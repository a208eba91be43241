// Softmax and cross-entropy of logits(K,N): a sample is a column, so that the layer before needs no transpose.
// One block works on one sample whatever K is. Outputs may be the logits themselves (in place).

#define FLOAT_MAX 3.402823466e38f

__device__ inline float column_maximum(const float* z, i64 K, i64 N) {
  float most = -INFINITY;
  BLOCK_STRIDE(k, K) most = max_nan(z[k * N], most);
  return block_max(most);
}

// p[k] = exp(z[k] - most); returns their sum, at least 1 unless a logit is NaN or all are infinite.
__device__ inline float exponentials(const float* z, float* p, float most, i64 K, i64 N) {
  float sum = 0.f;
  BLOCK_STRIDE(k, K) {
    const float e = expf(z[k * N] - most);
    p[k * N] = e;
    sum += e;
  }
  return block_sum(sum);
}

extern "C" __global__ void softmax(const float* logits, float* p, i64 K, i64 N) {
  BLOCK_ROWS(n, N) {
    const float sum = exponentials(logits + n, p + n, column_maximum(logits + n, K, N), K, N);
    BLOCK_STRIDE(k, K) p[k * N + n] /= sum;
  }
}

// A label outside 0..K-1 reads nothing and gives NaN.
__device__ inline float label_logit(const float* z, int label, i64 K, i64 N) {
  return label >= 0 && label < K ? z[label * N] : NAN;
}

// log-sum-exp minus the label's logit; the largest float stands for what float32 cannot hold.
__device__ inline float cross_entropy(float most, float sum, float logit) {
  const float loss = logf(sum) + (most - logit);
  return loss > FLOAT_MAX ? FLOAT_MAX : loss;
}

extern "C" __global__ void cross_entropy_loss(const float* __restrict__ logits, const int* __restrict__ labels,
                                              float* __restrict__ loss, i64 K, i64 N) {
  BLOCK_ROWS(n, N) {
    const float* z = logits + n;
    const float logit = label_logit(z, labels[n], K, N), most = column_maximum(z, K, N);
    float sum = 0.f;
    BLOCK_STRIDE(k, K) sum += expf(z[k * N] - most);
    sum = block_sum(sum);
    if (threadIdx.x == 0) loss[n] = cross_entropy(most, sum, logit);
  }
}

// dlogits = scale * (p - [k == label]), in the same pass over the classes. The label's logit is read before the barrier
// of column_maximum, so before anything is written.
extern "C" __global__ void softmax_cross_entropy(const float* logits, const int* __restrict__ labels,
                                                 float* __restrict__ loss, float* dlogits, float scale, i64 K, i64 N) {
  BLOCK_ROWS(n, N) {
    const int label = labels[n];
    const float logit = label_logit(logits + n, label, K, N), most = column_maximum(logits + n, K, N);
    const float sum = exponentials(logits + n, dlogits + n, most, K, N);
    BLOCK_STRIDE(k, K) {
      const float p = dlogits[k * N + n] / sum;
      dlogits[k * N + n] = scale * (k == label ? p - 1.f : p);
    }
    if (threadIdx.x == 0) loss[n] = cross_entropy(most, sum, logit);
  }
}

// How many classes come before the label's: greater logits, and equal ones of a smaller class, so that a net that says
// the same of all classes is right once in K. NaN comes before everything: a net that has diverged is never right.
extern "C" __global__ void label_rank(const float* __restrict__ logits, const int* __restrict__ labels,
                                      int* __restrict__ rank, i64 K, i64 N) {
  BLOCK_ROWS(n, N) {
    const int label = labels[n];
    const float own = label_logit(logits + n, label, K, N);
    float before = 0.f;
    BLOCK_STRIDE(k, K) {
      const float z = logits[k * N + n];
      const bool after = z < own || (z == own && k >= label);
      before += after ? 0.f : 1.f;
    }
    before = block_sum(before);
    if (threadIdx.x == 0) rank[n] = (int)before;
  }
}
