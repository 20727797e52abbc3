package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// nkpAccount is the service account, in kube-system, that deploy/kubernetes/rbac/rbac.yaml makes.
const nkpAccount = "nkp"

// decodeFile reads a file of Kubernetes YAML; Lists are taken apart.
func decodeFile(name string) (objects []runtime.Object, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	docs := yaml.NewYAMLOrJSONDecoder(f, 4096)
	for {
		var raw runtime.RawExtension
		if err := docs.Decode(&raw); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		pending := []runtime.RawExtension{raw}
		for len(pending) > 0 {
			o, _, err := scheme.Codecs.UniversalDeserializer().Decode(pending[0].Raw, nil, nil)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			pending = pending[1:]
			if list, ok := o.(*v1.List); ok {
				pending = append(pending, list.Items...)
				continue
			}
			objects = append(objects, o)
		}
	}
}

// applyRoles gives nkp its identity and rights, from a file that ships.
func (c *cluster) applyRoles(file string) {
	c.t.Helper()
	objects, err := decodeFile(filepath.Join(kubernetesDir, file))
	must(c.t, err)
	for _, o := range objects {
		c.eventually("the namespace is there", func() error { // the API server makes it after its start
			err := c.createRole(o)
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
}

func (c *cluster) createRole(o runtime.Object) (err error) {
	rbac, opts := c.client.RbacV1(), metav1.CreateOptions{}
	switch o := o.(type) {
	case *v1.ServiceAccount:
		_, err = c.client.CoreV1().ServiceAccounts(o.Namespace).Create(c.ctx, o, opts)
	case *rbacv1.ClusterRole:
		_, err = rbac.ClusterRoles().Create(c.ctx, o, opts)
	case *rbacv1.ClusterRoleBinding:
		_, err = rbac.ClusterRoleBindings().Create(c.ctx, o, opts)
	default:
		err = fmt.Errorf("a %T is not expected in a file of roles", o)
	}
	return err
}

// token returns one for a service account in kube-system.
func (c *cluster) token(account string) string {
	c.t.Helper()
	token, err := c.tryToken(c.ctx, account)
	must(c.t, err)
	return token
}

func (c *cluster) tryToken(ctx context.Context, account string) (string, error) {
	accounts := c.client.CoreV1().ServiceAccounts("kube-system")
	answer, err := accounts.CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}
