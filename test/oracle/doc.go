// Package oracle makes random clusters, and asks nkp's model everything about them. Two suites judge the answers:
//
//   - test/k8s/differential has kube-proxy's own Go code answer the same questions, and writes testdata/agreed: for each case, a
//     hash of nkp's answers on which kube-proxy agreed, the documented differences aside.
//   - TestAgreed, here, compares nkp with that file, so that it needs no code of Kubernetes.
//
// Start reading at [Case].
package oracle
