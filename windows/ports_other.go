//go:build !windows

package windows

import (
	"context"
	"errors"
)

func freePortBlocks(context.Context) (PortBlocks, error) { return PortBlocks{}, errors.ErrUnsupported }
